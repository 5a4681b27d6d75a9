// Cart-pole balancing: gymnasium's CartPole-v1 with a force in between. Equations: envs/systems/cartpole_balance.py.
#pragma once

#include "cart_pole.h"
#include "system.h"

namespace surefoot {

struct cartpole_balance {
  enum { states = 4, actions = 1, observations = 4, parameters = cart_pole_parameters, uniforms = 4, normals = 1 };

  template <class T>
  SF_INLINE static void reset(T (&s)[states], const T (&u)[uniforms], const T (&)[parameters]) {
    s[0] = T(0.1) * u[0] - T(0.05);
    s[1] = T(0.1) * u[1] - T(0.05);
    s[2] = T(0.1) * u[2] - T(0.05);
    s[3] = T(0.1) * u[3] - T(0.05);
  }

  template <class T>
  SF_INLINE static void observe(T (&o)[observations], const T (&s)[states], const T (&)[parameters]) {
    o[0] = s[0];
    o[1] = s[1];
    o[2] = s[2];
    o[3] = s[3];
  }

  template <class T>
  SF_INLINE static Outcome<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters],
                                   const T (&z)[normals]) {
    const T dt = T(0.02), max_position = T(2.4), max_angle = T(12 * 3.14159265358979323846 / 180);
    T cart, pole;
    cart_pole_accelerations(s[1], s[2], s[3], p[6] * a[0] + p[8] * z[0], p, cart, pole);
    s[0] = s[0] + dt * s[1];  // gymnasium's Euler step: positions by the old velocities
    s[1] = s[1] + dt * cart;
    s[2] = s[2] + dt * s[3];
    s[3] = s[3] + dt * pole;
    const T position = abs(s[0]), angle = abs(s[2]);
    const T fallen = (position > max_position) | (angle > max_angle) ? T(1) : T(0);
    return {T(1), min(max_position - position, T(0.2) - angle), fallen};
  }
};

}  // namespace surefoot
