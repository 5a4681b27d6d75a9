// Acrobot swing-up: gymnasium's Acrobot-v1 with a continuous torque. Equations: envs/systems/acrobot.py.
#pragma once

#include "system.h"

namespace surefoot {

struct acrobot {
  enum { states = 4, actions = 1, observations = 6, parameters = 14, uniforms = 4, normals = 1 };

  template <class T>
  SF_INLINE static void reset(T (&s)[states], const T (&u)[uniforms], const T (&)[parameters]) {
    s[0] = T(0.2) * u[0] - T(0.1);
    s[1] = T(0.2) * u[1] - T(0.1);
    s[2] = T(0.2) * u[2] - T(0.1);
    s[3] = T(0.2) * u[3] - T(0.1);
  }

  template <class T>
  SF_INLINE static void observe(T (&o)[observations], const T (&s)[states], const T (&)[parameters]) {
    T s1, c1, s2, c2;  // references to array elements would keep the loop over lanes from vectorising
    sine_cosine(s[0], s1, c1);
    sine_cosine(s[1], s2, c2);
    o[0] = c1;
    o[1] = s1;
    o[2] = c2;
    o[3] = s2;
    o[4] = s[2];
    o[5] = s[3];
  }

  /// Angular accelerations of shoulder and elbow, rad/s^2.
  template <class T>
  SF_INLINE static void accelerations(T shoulder, T elbow, T w1, T w2, T torque, const T (&p)[parameters], T& a1,
                                      T& a2) {
    const T gravity = p[0], mass_1 = p[1], mass_2 = p[2], length_1 = p[3], centre_1 = p[5], centre_2 = p[6];
    const T inertia = p[7], friction = p[9];
    const T coupling = mass_2 * length_1 * centre_2;
    const T arm_1 = mass_1 * centre_1 * centre_1 + mass_2 * length_1 * length_1 + inertia;
    const T arm_2 = mass_2 * centre_2 * centre_2 + inertia;
    const T per_sine_1 = (mass_1 * centre_1 + mass_2 * length_1) * gravity, per_sine_2 = mass_2 * centre_2 * gravity;
    T sine, cosine;
    sine_cosine(elbow, sine, cosine);
    const T d1 = arm_1 + arm_2 + T(2) * coupling * cosine;
    const T d2 = arm_2 + coupling * cosine;
    const T weight_2 = per_sine_2 * sin(shoulder + elbow);
    const T swirl = coupling * sine;
    const T phi1 = -swirl * (w2 * w2 + T(2) * w1 * w2) + per_sine_1 * sin(shoulder) + weight_2 + friction * w1;
    const T drive = torque - friction * w2 - swirl * w1 * w1 - weight_2;
    const T ratio = d2 / d1;
    a2 = (drive + ratio * phi1) / (arm_2 - d2 * ratio);
    a1 = -(d2 * a2 + phi1) / d1;
  }

  /// One step of the classical Runge-Kutta method.
  template <class T>
  SF_INLINE static void integrate(T (&s)[states], T torque, T dt, const T (&p)[parameters]) {
    const T half = T(0.5) * dt, sixth = dt / T(6);
    T a1, a2, a3, a4, b1, b2, b3, b4;
    accelerations(s[0], s[1], s[2], s[3], torque, p, a1, b1);
    const T v2 = s[2] + half * a1, w2 = s[3] + half * b1;
    accelerations(s[0] + half * s[2], s[1] + half * s[3], v2, w2, torque, p, a2, b2);
    const T v3 = s[2] + half * a2, w3 = s[3] + half * b2;
    accelerations(s[0] + half * v2, s[1] + half * w2, v3, w3, torque, p, a3, b3);
    const T v4 = s[2] + dt * a3, w4 = s[3] + dt * b3;
    accelerations(s[0] + dt * v3, s[1] + dt * w3, v4, w4, torque, p, a4, b4);
    s[0] = s[0] + sixth * (s[2] + T(2) * v2 + T(2) * v3 + v4);
    s[1] = s[1] + sixth * (s[3] + T(2) * w2 + T(2) * w3 + w4);
    s[2] = s[2] + sixth * (a1 + T(2) * a2 + T(2) * a3 + a4);
    s[3] = s[3] + sixth * (b1 + T(2) * b2 + T(2) * b3 + b4);
  }

  template <class T>
  SF_INLINE static Outcome<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters],
                                   const T (&z)[normals]) {
    const T max_shoulder = T(4 * 3.14159265358979323846), max_elbow = T(9 * 3.14159265358979323846);
    const T length_1 = p[3], length_2 = p[4], goal_height = p[11], ceiling = p[12], speed_limit = p[13];
    integrate(s, p[8] * (a[0] + p[10] * z[0]), T(0.2), p);
    s[0] = wrap(s[0]);
    s[1] = wrap(s[1]);
    s[2] = clip(s[2], -max_shoulder, max_shoulder);
    s[3] = clip(s[3], -max_elbow, max_elbow);
    const T height = -length_1 * cos(s[0]) - length_2 * cos(s[0] + s[1]);
    const T reached = height > goal_height ? T(1) : T(0);
    return {reached - T(1), min(T(1) - abs(s[3]) / speed_limit, ceiling - height), reached};
  }
};

}  // namespace surefoot
