// Kinematic bicycle in traffic on three lanes. Equations: envs/systems/bicycle.py.
#pragma once

#include "system.h"

namespace surefoot {

struct bicycle {
  enum { states = 10, actions = 2, observations = 10, parameters = 8, uniforms = 10, normals = 1 };

  template <class T>
  SF_INLINE static void reset(T (&s)[states], const T (&u)[uniforms], const T (&)[parameters]) {
    s[0] = T(0);
    s[1] = lane(u[0]) + T(0.5) * (T(2) * u[1] - T(1));
    s[2] = T(0.05) * (T(2) * u[2] - T(1));
    s[3] = T(8) + T(4) * u[3];
    s[4] = T(35) + T(10) * u[4];
    s[5] = lane(u[5]);
    s[6] = T(75) + T(10) * u[6];
    s[7] = lane(u[7]);
    s[8] = T(115) + T(10) * u[8];
    s[9] = lane(u[9]);
  }

  template <class T>
  SF_INLINE static void observe(T (&o)[observations], const T (&s)[states], const T (&)[parameters]) {
    T sine, cosine;
    sine_cosine(s[2], sine, cosine);
    o[0] = s[1];
    o[1] = sine;
    o[2] = cosine;
    o[3] = s[3];
    o[4] = s[4] - s[0];
    o[5] = s[5] - s[1];
    o[6] = s[6] - s[0];
    o[7] = s[7] - s[1];
    o[8] = s[8] - s[0];
    o[9] = s[9] - s[1];
  }

  template <class T>
  SF_INLINE static Outcome<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters],
                                   const T (&z)[normals]) {
    const T dt = T(0.1), top_speed = T(20), max_steer = T(0.785398163397448310), gravity = T(9.8);
    const T half_road = T(6), half_width = T(1);
    const T steer = clip(a[0] + p[7] * z[0], -max_steer, max_steer);
    const T acceleration = p[2] * a[1], v = s[3];
    const T new_v = clip(v + acceleration * dt, T(0), top_speed), gained = new_v - v;
    // v dt + a dt^2 / 2, or less where the speed meets a limit within the step
    const T length = new_v * dt - T(0.5) * gained * gained / (acceleration == T(0) ? T(1) : acceleration);
    const T tangent = T(0.5) * tan(p[1] * steer);
    const T slip_cosine = T(1) / sqrt(T(1) + tangent * tangent), slip_sine = tangent * slip_cosine;
    const T limit = p[3] * gravity / max(v * v, T(1e-3));
    const T half = T(0.5) * length * clip(T(2) * slip_sine / p[0], -limit, limit), q = half * half;
    // sin(half) / half by its series
    const T later = T(1) - q * T(1.0 / 42) * (T(1) - q * T(1.0 / 72));
    const T chord = length * (T(1) - q * T(1.0 / 6) * (T(1) - q * T(1.0 / 20) * later));
    T sine, cosine;
    sine_cosine(s[2] + half, sine, cosine);
    const T advance = chord * (cosine * slip_cosine - sine * slip_sine);
    s[0] = s[0] + advance;
    s[1] = s[1] + chord * (sine * slip_cosine + cosine * slip_sine) + p[4] * dt;
    s[2] = s[2] + T(2) * half;
    s[3] = new_v;

    const T gap1 = drive_on(s[4], s[5], s[0], s[1], p[5] * dt);
    const T gap2 = drive_on(s[6], s[7], s[0], s[1], p[5] * dt);
    const T gap3 = drive_on(s[8], s[9], s[0], s[1], p[5] * dt);
    const T gap = min(min(gap1, gap2), gap3), edge = half_road - half_width - abs(s[1]);
    const T turned = steer * T(1.27323954473516269);  // of the bound
    const T reward = T(0.5) * advance - T(0.1) * turned * turned;
    return {reward, min(gap - p[6], edge), (gap < T(0)) | (edge < T(-1)) ? T(1) : T(0)};
  }

  /// Middle of one of the three lanes.
  template <class T>
  SF_INLINE static T lane(T draw) {
    return (floor(T(3) * draw) - T(1)) * T(4);
  }

  /// Move another car on, bring it back ahead once it is overtaken; returns its distance from (x, y) before that.
  template <class T>
  SF_INLINE static T drive_on(T& car_x, T& car_y, T x, T y, T advance) {
    const T length = T(5), width = T(2), behind = T(15), lap = T(120);
    const T moved = car_x + advance;
    const T out_x = abs(moved - x) - length, out_y = abs(car_y - y) - width;
    const T far_x = max(out_x, T(0)), far_y = max(out_y, T(0));
    const T distance = sqrt(far_x * far_x + far_y * far_y) + min(max(out_x, out_y), T(0));
    const bool passed = moved < x - behind;
    const T left = car_y > T(2) ? car_y - T(8) : car_y + T(4);
    car_x = passed ? moved + lap : moved;
    car_y = passed ? left : car_y;
    return distance;
  }
};

}  // namespace surefoot
