// 3-D quadrotor with motor lag, no-fly sphere and walls. Equations: envs/systems/quadrotor_3d.py.
#pragma once

#include "system.h"

namespace surefoot {

struct quadrotor_3d {
  enum { states = 17, actions = 4, observations = 22, parameters = 17, uniforms = 12, normals = 4 };

  /// What the thrusts move; also its time derivative.
  template <class T>
  struct Body {
    T x, y, z, vx, vy, vz, qw, qx, qy, qz, wx, wy, wz;
  };
  template <class T>
  struct Thrusts {
    T f1, f2, f3, f4;
  };

  template <class T>
  SF_INLINE static void reset(T (&s)[states], const T (&u)[uniforms], const T (&p)[parameters]) {
    s[0] = T(-1.6) + T(0.4) * (T(2) * u[0] - T(1));
    s[1] = T(2) * u[1] - T(1);
    s[2] = T(1) + T(0.4) * (T(2) * u[2] - T(1));
    s[3] = T(0.3) * (T(2) * u[3] - T(1));
    s[4] = T(0.3) * (T(2) * u[4] - T(1));
    s[5] = T(0.3) * (T(2) * u[5] - T(1));
    s[6] = T(1);
    s[7] = T(0.1) * (T(2) * u[6] - T(1));
    s[8] = T(0.1) * (T(2) * u[7] - T(1));
    s[9] = T(0.1) * (T(2) * u[8] - T(1));
    unit(s[6], s[7], s[8], s[9]);
    s[10] = T(0.2) * (T(2) * u[9] - T(1));
    s[11] = T(0.2) * (T(2) * u[10] - T(1));
    s[12] = T(0.2) * (T(2) * u[11] - T(1));
    const T hover = min(T(0.25) * p[0] * p[9], p[5]);
    s[13] = hover;
    s[14] = hover;
    s[15] = hover;
    s[16] = hover;
  }

  template <class T>
  SF_INLINE static void observe(T (&o)[observations], const T (&s)[states], const T (&p)[parameters]) {
    const T w = s[6], x = s[7], y = s[8], z = s[9], per_thrust = T(1) / max(p[5], T(1e-9));
    o[0] = s[0];
    o[1] = s[1];
    o[2] = s[2] - T(1);
    o[3] = s[3];
    o[4] = s[4];
    o[5] = s[5];
    o[6] = T(1) - T(2) * (y * y + z * z);
    o[7] = T(2) * (x * y - w * z);
    o[8] = T(2) * (x * z + w * y);
    o[9] = T(2) * (x * y + w * z);
    o[10] = T(1) - T(2) * (x * x + z * z);
    o[11] = T(2) * (y * z - w * x);
    o[12] = T(2) * (x * z - w * y);
    o[13] = T(2) * (y * z + w * x);
    o[14] = T(1) - T(2) * (x * x + y * y);
    o[15] = s[10];
    o[16] = s[11];
    o[17] = s[12];
    o[18] = s[13] * per_thrust;
    o[19] = s[14] * per_thrust;
    o[20] = s[15] * per_thrust;
    o[21] = s[16] * per_thrust;
  }

  /// Scaled to length 1.
  template <class T>
  SF_INLINE static void unit(T& w, T& x, T& y, T& z) {
    const T per_length = T(1) / sqrt(w * w + x * x + y * y + z * z);
    w = w * per_length;
    x = x * per_length;
    y = y * per_length;
    z = z * per_length;
  }

  template <class T>
  SF_INLINE static Body<T> derivative(const Body<T>& b, const Thrusts<T>& f, const T (&p)[parameters]) {
    const T arm = T(0.70710678118654752440) * p[1], jx = p[2], jy = p[3], jz = p[4];
    const T per_mass = T(1) / p[0], per_jx = T(1) / jx, per_jy = T(1) / jy, per_jz = T(1) / jz;
    const T slow = p[8] * per_mass;
    const T lift = (f.f1 + f.f2 + f.f3 + f.f4) * per_mass;
    const T torque_x = arm * (f.f1 + f.f2 - f.f3 - f.f4);
    const T torque_y = arm * (-f.f1 + f.f2 + f.f3 - f.f4);
    const T torque_z = p[6] * (f.f1 - f.f2 + f.f3 - f.f4);
    return {b.vx,
            b.vy,
            b.vz,
            T(2) * (b.qx * b.qz + b.qw * b.qy) * lift - slow * (b.vx - p[10]),
            T(2) * (b.qy * b.qz - b.qw * b.qx) * lift - slow * (b.vy - p[11]),
            (T(1) - T(2) * (b.qx * b.qx + b.qy * b.qy)) * lift - slow * b.vz - p[9],
            T(0.5) * (-b.qx * b.wx - b.qy * b.wy - b.qz * b.wz),
            T(0.5) * (b.qw * b.wx + b.qy * b.wz - b.qz * b.wy),
            T(0.5) * (b.qw * b.wy + b.qz * b.wx - b.qx * b.wz),
            T(0.5) * (b.qw * b.wz + b.qx * b.wy - b.qy * b.wx),
            (torque_x - (jz - jy) * b.wy * b.wz) * per_jx,
            (torque_y - (jx - jz) * b.wz * b.wx) * per_jy,
            (torque_z - (jy - jx) * b.wx * b.wy) * per_jz};
  }

  /// b + h k
  template <class T>
  SF_INLINE static Body<T> moved(const Body<T>& b, T h, const Body<T>& k) {
    return {b.x + h * k.x,   b.y + h * k.y,   b.z + h * k.z,   b.vx + h * k.vx, b.vy + h * k.vy,
            b.vz + h * k.vz, b.qw + h * k.qw, b.qx + h * k.qx, b.qy + h * k.qy, b.qz + h * k.qz,
            b.wx + h * k.wx, b.wy + h * k.wy, b.wz + h * k.wz};
  }

  /// Thrusts after a time of which `fade` is exp(-time / lag).
  template <class T>
  SF_INLINE static Thrusts<T> faded(const Thrusts<T>& from, const Thrusts<T>& to, T fade) {
    return {to.f1 + fade * (from.f1 - to.f1), to.f2 + fade * (from.f2 - to.f2), to.f3 + fade * (from.f3 - to.f3),
            to.f4 + fade * (from.f4 - to.f4)};
  }

  /// One step of the classical Runge-Kutta method.
  template <class T>
  SF_INLINE static void integrate(Body<T>& b, Thrusts<T>& f, const Thrusts<T>& command, T fade, T dt,
                                  const T (&p)[parameters]) {
    const T half = T(0.5) * dt, sixth = dt / T(6), third = dt / T(3);
    const Thrusts<T> middle = faded(f, command, fade);
    const Body<T> k1 = derivative(b, f, p);
    const Body<T> k2 = derivative(moved(b, half, k1), middle, p);
    const Body<T> k3 = derivative(moved(b, half, k2), middle, p);
    f = faded(middle, command, fade);
    const Body<T> k4 = derivative(moved(b, dt, k3), f, p);
    b = moved(moved(moved(moved(b, sixth, k1), third, k2), third, k3), sixth, k4);
  }

  template <class T>
  SF_INLINE static Outcome<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters],
                                   const T (&z)[normals]) {
    const T dt = T(1.0 / 120), max_thrust = p[5], noise = p[12];
    const T fade = exp(T(-0.5) * dt / max(p[7], T(1e-4)));
    const Thrusts<T> command = {
        max_thrust * clip(a[0] + noise * z[0], T(0), T(1)), max_thrust * clip(a[1] + noise * z[1], T(0), T(1)),
        max_thrust * clip(a[2] + noise * z[2], T(0), T(1)), max_thrust * clip(a[3] + noise * z[3], T(0), T(1))};
    Body<T> b = {s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12]};
    Thrusts<T> f = {s[13], s[14], s[15], s[16]};
    integrate(b, f, command, fade, dt, p);
    integrate(b, f, command, fade, dt, p);
    unit(b.qw, b.qx, b.qy, b.qz);
    s[0] = b.x;
    s[1] = b.y;
    s[2] = b.z;
    s[3] = b.vx;
    s[4] = b.vy;
    s[5] = b.vz;
    s[6] = b.qw;
    s[7] = b.qx;
    s[8] = b.qy;
    s[9] = b.qz;
    s[10] = b.wx;
    s[11] = b.wy;
    s[12] = b.wz;
    s[13] = f.f1;
    s[14] = f.f2;
    s[15] = f.f3;
    s[16] = f.f4;
    return judge(b, p);
  }

  /// Reward, margin and end of a new state.
  template <class T>
  SF_INLINE static Outcome<T> judge(const Body<T>& b, const T (&p)[parameters]) {
    const T height = b.z - T(1), away_x = b.x - p[13], away_y = b.y - p[14];
    const T distance = sqrt(b.x * b.x + b.y * b.y + height * height);
    const T rate = sqrt(b.wx * b.wx + b.wy * b.wy + b.wz * b.wz);
    const T reward = max(exp(-distance) - T(0.002) * rate, T(0));
    const T sphere = sqrt(away_x * away_x + away_y * away_y + height * height) - p[15];
    const T tilt = T(1) - T(2) * (b.qx * b.qx + b.qy * b.qy) - cos(p[16]);
    const T room = T(2.5) - max(max(abs(b.x), abs(b.y)), b.z);
    const T ended = (b.z < T(0)) | (room < T(-0.5)) ? T(1) : T(0);
    return {reward, min(min(sphere, tilt), min(b.z - T(0.1), room)), ended};
  }
};

}  // namespace surefoot
