// Pendulum swing-up: gymnasium's Pendulum-v1 with damping, wind and noise. Equations: envs/systems/pendulum.py.
#pragma once

#include "system.h"

namespace surefoot {

struct pendulum {
  enum { states = 2, actions = 1, observations = 3, parameters = 7, uniforms = 2, normals = 1, optional = 5 };

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
  SF_INLINE static Endless<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters],
                                   const T (&z)[normals]) {
    const T dt = T(0.05);
    // 8, but no constant to the compiler: with one it makes twice the instructions of the clipping below
    const T max_speed = T(8) + T(0) * p[0];
    const T gravity = p[0], mass = p[1], length = p[2], damping = p[3], gain = p[4], wind = p[5], noise = p[6];
    T angle, sine, cosine;
    wrapped_sine_cosine(s[0], angle, sine, cosine);
    const T reward = -(angle * angle + T(0.1) * s[1] * s[1] + T(0.001) * a[0] * a[0]);
    // acceleration times dt, as factors of what changes from step to step; the rest is the parameters' alone
    const T by_weight = T(1.5) * dt * gravity / length, by_wind = T(1.5) * dt * wind / (mass * length);
    const T by_torque = T(3) * dt / (mass * length * length);
    const T kept = T(1) - by_torque * damping, by_action = by_torque * gain, by_noise = by_torque * noise;
    const T sideways = wind == T(0) ? T(0) : by_wind * cosine;
    const T speed = by_weight * sine + (sideways + (by_action * a[0] + (kept * s[1] + by_noise * z[0])));
    s[1] = clip(speed, -max_speed, max_speed);
    s[0] = s[0] + s[1] * dt;
    // 20 to 30 degrees is forbidden: 25 degrees, give or take 5. The new angle is at most pi + 0.4 from 0.
    const T off = abs(angle - T(0.436332312998582394) + s[1] * dt), half_width = T(0.0872664625997164788);
    const T margin = min(off - half_width, T(6.28318530717958648) - half_width - off);
    return {reward, margin};
  }
};

}  // namespace surefoot
