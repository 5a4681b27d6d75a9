// Pendulum swing-up: gymnasium's Pendulum-v1 with damping, wind and noise. Equations: envs/systems/pendulum.py.
#pragma once

#include "system.h"

namespace surefoot {

struct pendulum {
  enum { states = 2, actions = 1, observations = 3, parameters = 7, uniforms = 2, normals = 1 };

  template <class T>
  SF_INLINE static void reset(T (&s)[states], const T (&u)[uniforms], const T (&)[parameters]) {
    s[0] = T(3.14159265358979323846) * (T(2) * u[0] - T(1));
    s[1] = T(2) * u[1] - T(1);
  }

  template <class T>
  SF_INLINE static void observe(T (&o)[observations], const T (&s)[states], const T (&)[parameters]) {
    sine_cosine(s[0], o[1], o[0]);
    o[2] = s[1];
  }

  template <class T>
  SF_INLINE static Outcome<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters],
                                   const T (&z)[normals]) {
    const T dt = T(0.05), max_speed = T(8);
    const T gravity = p[0], mass = p[1], length = p[2], damping = p[3], gain = p[4], wind = p[5], noise = p[6];
    const T angle = wrap(s[0]);
    const T reward = -(angle * angle + T(0.1) * s[1] * s[1] + T(0.001) * a[0] * a[0]);
    const T torque = gain * a[0] + noise * z[0] - damping * s[1];
    const T per_inertia = T(3) / (mass * length * length), per_weight = T(1.5) * gravity / length;
    const T per_wind = T(1.5) * wind / (mass * length);
    T sine, cosine;
    sine_cosine(s[0], sine, cosine);
    const T acceleration = per_weight * sine + per_wind * cosine + per_inertia * torque;
    s[1] = clip(s[1] + acceleration * dt, -max_speed, max_speed);
    s[0] = s[0] + s[1] * dt;
    // 20 to 30 degrees is forbidden: 25 degrees, give or take 5
    const T margin = abs(wrap(s[0] - T(0.436332312998582394))) - T(0.0872664625997164788);
    return {reward, margin, T(0)};
  }
};

}  // namespace surefoot
