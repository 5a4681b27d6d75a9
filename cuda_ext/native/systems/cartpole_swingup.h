// Cart-pole swing-up: the same cart, its pole hanging at first. Equations: envs/systems/cartpole_swingup.py.
#pragma once

#include "cart_pole.h"
#include "system.h"

namespace surefoot {

struct cartpole_swingup {
  enum { states = 4, actions = 1, observations = 5, parameters = cart_pole_parameters, uniforms = 4, normals = 1 };

  template <class T>
  SF_INLINE static void reset(T (&s)[states], const T (&u)[uniforms], const T (&)[parameters]) {
    s[0] = T(0.2) * u[0] - T(0.1);
    s[1] = T(0.1) * u[1] - T(0.05);
    s[2] = T(3.14159265358979323846) + T(0.2) * u[2] - T(0.1);
    s[3] = T(0.1) * u[3] - T(0.05);
  }

  template <class T>
  SF_INLINE static void observe(T (&o)[observations], const T (&s)[states], const T (&)[parameters]) {
    o[0] = s[0];
    o[1] = s[1];
    sine_cosine(s[2], o[3], o[2]);
    o[4] = s[3];
  }

  /// One step of the classical Runge-Kutta method.
  template <class T>
  SF_INLINE static void integrate(T (&s)[states], T force, T dt, const T (&p)[parameters]) {
    const T half = T(0.5) * dt;
    T c1, c2, c3, c4, w1, w2, w3, w4;
    cart_pole_accelerations(s[1], s[2], s[3], force, p, c1, w1);
    const T v2 = s[1] + half * c1, r2 = s[3] + half * w1;
    cart_pole_accelerations(v2, s[2] + half * s[3], r2, force, p, c2, w2);
    const T v3 = s[1] + half * c2, r3 = s[3] + half * w2;
    cart_pole_accelerations(v3, s[2] + half * r2, r3, force, p, c3, w3);
    const T v4 = s[1] + dt * c3, r4 = s[3] + dt * w3;
    cart_pole_accelerations(v4, s[2] + dt * r3, r4, force, p, c4, w4);
    const T sixth = dt / T(6);
    s[0] = s[0] + sixth * (s[1] + T(2) * v2 + T(2) * v3 + v4);
    s[2] = s[2] + sixth * (s[3] + T(2) * r2 + T(2) * r3 + r4);
    s[1] = s[1] + sixth * (c1 + T(2) * c2 + T(2) * c3 + c4);
    s[3] = s[3] + sixth * (w1 + T(2) * w2 + T(2) * w3 + w4);
  }

  template <class T>
  SF_INLINE static Outcome<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters],
                                   const T (&z)[normals]) {
    const T max_position = T(2.4), safe_position = T(2.0);
    integrate(s, p[6] * a[0] + p[8] * z[0], T(0.02), p);
    const T position = abs(s[0]), effort = T(0.1) * a[0];
    const T upright = T(0.5) + T(0.5) * cos(s[2]);
    const T centred = T(0.5) + T(0.5) * exp(T(-2.30258509299404568) * T(0.25) * position * position);
    const T gentle = T(0.8) + T(0.2) * max(T(1) - effort * effort, T(0));
    const T slow = T(0.5) + T(0.5) * exp(T(-2.30258509299404568) * T(0.04) * s[3] * s[3]);
    return {upright * centred * gentle * slow, safe_position - position, position > max_position ? T(1) : T(0)};
  }
};

}  // namespace surefoot
