// Planar double integrator between walls, exact zero-order hold. Equations: envs/systems/double_integrator.py.
#pragma once

#include "system.h"

namespace surefoot {

struct double_integrator {
  enum { states = 4, actions = 2, observations = 4, parameters = 11, uniforms = 4, normals = 2 };

  template <class T>
  SF_INLINE static void reset(T (&s)[states], const T (&u)[uniforms], const T (&p)[parameters]) {
    s[0] = p[9] * (T(2) * u[0] - T(1));
    s[1] = p[9] * (T(2) * u[1] - T(1));
    s[2] = p[10] * (T(2) * u[2] - T(1));
    s[3] = p[10] * (T(2) * u[3] - T(1));
  }

  template <class T>
  SF_INLINE static void observe(T (&o)[observations], const T (&s)[states], const T (&)[parameters]) {
    o[0] = s[0];
    o[1] = s[1];
    o[2] = s[2];
    o[3] = s[3];
  }

  /// (1 - e^-z) / z by eight terms of its series: error under 1e-13 for z <= 0.1.
  template <class T>
  SF_INLINE static T hold_velocity(T z) {
    const T tail = T(1) - z * T(1.0 / 7) * (T(1) - z * T(1.0 / 8) * (T(1) - z * T(1.0 / 9)));
    return T(1) - z * T(1.0 / 2) * (T(1) - z * T(1.0 / 3) * (T(1) - z * T(1.0 / 4) * (T(1) - z * T(1.0 / 5) *
           (T(1) - z * T(1.0 / 6) * tail))));
  }

  /// 2 (z - 1 + e^-z) / z^2 likewise.
  template <class T>
  SF_INLINE static T hold_force(T z) {
    const T tail = T(1) - z * T(1.0 / 8) * (T(1) - z * T(1.0 / 9) * (T(1) - z * T(1.0 / 10)));
    return T(1) - z * T(1.0 / 3) * (T(1) - z * T(1.0 / 4) * (T(1) - z * T(1.0 / 5) * (T(1) - z * T(1.0 / 6) *
           (T(1) - z * T(1.0 / 7) * tail))));
  }

  template <class T>
  SF_INLINE static Endless<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters],
                                   const T (&z)[normals]) {
    const T dt = T(0.05);
    const T mass = p[0], force = p[1], drag = p[2], wind_x = p[3], wind_y = p[4], noise = p[5], wall = p[6];
    const T phi1 = dt * hold_velocity(drag * dt), phi2 = T(0.5) * dt * dt * hold_force(drag * dt);
    const T per_mass = T(1) / mass;
    const T away_x = s[0] - p[7], away_y = s[1] - p[8];
    const T reward = -(away_x * away_x + away_y * away_y) - T(0.01) * (s[2] * s[2] + s[3] * s[3]) -
                     T(0.01) * (a[0] * a[0] + a[1] * a[1]);
    const T push_x = (force * (a[0] + noise * z[0]) + wind_x) * per_mass;
    const T push_y = (force * (a[1] + noise * z[1]) + wind_y) * per_mass;
    s[0] = s[0] + phi1 * s[2] + phi2 * push_x;
    s[1] = s[1] + phi1 * s[3] + phi2 * push_y;
    s[2] = s[2] + phi1 * (push_x - drag * s[2]);
    s[3] = s[3] + phi1 * (push_y - drag * s[3]);
    return {reward, wall - max(abs(s[0]), abs(s[1]))};
  }
};

}  // namespace surefoot
