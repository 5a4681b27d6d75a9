// Planar quadrotor: fly to a point and hover. Equations: envs/systems/quadrotor_2d.py.
#pragma once

#include "system.h"

namespace surefoot {

struct quadrotor_2d {
  enum { states = 6, actions = 2, observations = 6, parameters = 14, uniforms = 6, normals = 2 };

  template <class T>
  SF_INLINE static void reset(T (&s)[states], const T (&u)[uniforms], const T (&)[parameters]) {
    s[0] = T(1.2) * (T(2) * u[0] - T(1));
    s[1] = T(0.5) * (T(2) * u[1] - T(1));
    s[2] = T(1.1) + T(0.6) * (T(2) * u[2] - T(1));
    s[3] = T(0.5) * (T(2) * u[3] - T(1));
    s[4] = T(0.2) * (T(2) * u[4] - T(1));
    s[5] = T(0.2) * (T(2) * u[5] - T(1));
  }

  template <class T>
  SF_INLINE static void observe(T (&o)[observations], const T (&s)[states], const T (&p)[parameters]) {
    o[0] = s[0] - p[8];
    o[1] = s[1];
    o[2] = s[2] - p[9];
    o[3] = s[3];
    o[4] = s[4];
    o[5] = s[5];
  }

  template <class T>
  SF_INLINE static Outcome<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters],
                                   const T (&z)[normals]) {
    const T max_thrust = T(2.25 * 0.027 * 9.8 / 2), h = T(1.0 / 120), root_half = T(0.707106781186547524);
    const T crash_x = T(2), crash_ceiling = T(3), crash_tilt = T(85 * 3.14159265358979323846 / 180);
    const T left = p[4] * clip(a[0] + p[7] * z[0], T(0), max_thrust);
    const T right = p[4] * clip(a[1] + p[7] * z[1], T(0), max_thrust);
    const T per_mass = T(1) / p[1];
    const T spin = (right - left) * p[3] * root_half / p[2];
    const Forces<T> forces = {(left + right) * per_mass, p[6] * per_mass, p[5] * per_mass, p[0]};
    integrate(s[0], s[1], s[2], s[3], s[4], s[5], forces, spin, h);
    integrate(s[0], s[1], s[2], s[3], s[4], s[5], forces, spin, h);

    const T x = abs(s[0]), tilt = abs(s[4]), dx = s[0] - p[8], dz = s[2] - p[9];
    const T reward = T(1) / (T(1) + T(4) * (dx * dx + dz * dz) + T(0.01) * s[5] * s[5]);
    const T margin = min(min(p[10] - x, p[13] - tilt), min(s[2] - p[11], p[12] - s[2]));
    const bool crashed = (s[2] < T(0)) | (s[2] > crash_ceiling) | (x > crash_x) | (tilt > crash_tilt);
    return {reward, margin, crashed ? T(1) : T(0)};
  }

  /// Per unit of mass; `drag` per unit of speed.
  template <class T>
  struct Forces {
    T lift, wind, drag, gravity;
  };

  template <class T>
  SF_INLINE static void accelerations(T vx, T vz, T tilt, const Forces<T>& f, T& ax, T& az) {
    T sine, cosine;
    sine_cosine(tilt, sine, cosine);
    ax = f.lift * sine + f.wind - f.drag * vx;
    az = f.lift * cosine - f.gravity - f.drag * vz;
  }

  /// One step of the classical Runge-Kutta method; for the constant `spin` it is exact.
  template <class T>
  SF_INLINE static void integrate(T& x, T& vx, T& z, T& vz, T& tilt, T& rate, const Forces<T>& f, T spin, T h) {
    const T half = T(0.5) * h, sixth = h * T(1.0 / 6);
    T ax1, az1, ax2, az2, ax3, az3, ax4, az4;
    accelerations(vx, vz, tilt, f, ax1, az1);
    const T vx2 = vx + half * ax1, vz2 = vz + half * az1, rate2 = rate + half * spin, rate4 = rate + h * spin;
    accelerations(vx2, vz2, tilt + half * rate, f, ax2, az2);
    const T vx3 = vx + half * ax2, vz3 = vz + half * az2;
    accelerations(vx3, vz3, tilt + half * rate2, f, ax3, az3);
    const T vx4 = vx + h * ax3, vz4 = vz + h * az3;
    accelerations(vx4, vz4, tilt + h * rate2, f, ax4, az4);
    x = x + sixth * (vx + T(2) * vx2 + T(2) * vx3 + vx4);
    z = z + sixth * (vz + T(2) * vz2 + T(2) * vz3 + vz4);
    vx = vx + sixth * (ax1 + T(2) * ax2 + T(2) * ax3 + ax4);
    vz = vz + sixth * (az1 + T(2) * az2 + T(2) * az3 + az4);
    tilt = tilt + sixth * (rate + T(4) * rate2 + rate4);
    rate = rate4;
  }
};

}  // namespace surefoot
