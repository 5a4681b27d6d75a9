// The cart with a pole, shared by its two tasks. Equations: envs/systems/cartpole_balance.py.
#pragma once

#include "maths.h"

namespace surefoot {

enum { cart_pole_parameters = 9 };

/// Accelerations of the cart (m/s^2) and of the pole (rad/s^2) under `force` (N).
template <class T>
SF_INLINE void cart_pole_accelerations(T velocity, T angle, T rate, T force, const T (&p)[cart_pole_parameters],
                                       T& cart, T& pole) {
  const T gravity = p[0], cart_mass = p[1], pole_mass = p[2], length = p[3], friction = p[4], damping = p[5];
  const T wind = p[7];
  const T per_mass = T(1) / (cart_mass + pole_mass), lever = pole_mass * length, per_lever = T(1) / lever;
  T sine, cosine;
  sine_cosine(angle, sine, cosine);
  const T push = (force + wind - friction * velocity + lever * rate * rate * sine) * per_mass;
  const T turn = (wind * length * cosine - damping * rate) * per_lever;  // of wind and friction, per lever
  pole = (gravity * sine - cosine * push + turn) / (length * (T(4.0 / 3.0) - pole_mass * per_mass * cosine * cosine));
  cart = push - lever * per_mass * pole * cosine;
}

}  // namespace surefoot
