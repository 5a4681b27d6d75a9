// Dubins car past three discs to a goal. Equations: envs/systems/dubins_obstacles.py.
#pragma once

#include "system.h"

namespace surefoot {

struct dubins_obstacles {
  enum { states = 3, actions = 1, observations = 11, parameters = 17, uniforms = 3, normals = 1 };

  template <class T>
  SF_INLINE static void reset(T (&s)[states], const T (&u)[uniforms], const T (&)[parameters]) {
    s[0] = u[0] - T(3.5);
    s[1] = T(3) * u[1] - T(1.5);
    s[2] = T(3.14159265358979323846) * (u[2] - T(0.5));
  }

  template <class T>
  SF_INLINE static void observe(T (&o)[observations], const T (&s)[states], const T (&p)[parameters]) {
    T sine, cosine;
    sine_cosine(s[2], sine, cosine);
    const T goal_x = p[6] - s[0], goal_y = p[7] - s[1];
    const T x1 = p[8] - s[0], y1 = p[9] - s[1], x2 = p[11] - s[0], y2 = p[12] - s[1];
    const T x3 = p[14] - s[0], y3 = p[15] - s[1];
    o[0] = cosine * goal_x + sine * goal_y;
    o[1] = cosine * goal_y - sine * goal_x;
    o[2] = cosine * x1 + sine * y1;
    o[3] = cosine * y1 - sine * x1;
    o[4] = distance(x1, y1) - p[10];
    o[5] = cosine * x2 + sine * y2;
    o[6] = cosine * y2 - sine * x2;
    o[7] = distance(x2, y2) - p[13];
    o[8] = cosine * x3 + sine * y3;
    o[9] = cosine * y3 - sine * x3;
    o[10] = distance(x3, y3) - p[16];
  }

  template <class T>
  SF_INLINE static Outcome<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters],
                                   const T (&z)[normals]) {
    const T dt = T(0.05), goal_radius = T(0.3), bonus = T(5);
    const T turn = p[1] * clip(a[0] + p[5] * z[0], T(-1), T(1)) + p[2];
    const T half = T(0.5) * dt * turn, q = half * half;
    // sin(half) / half by its series
    const T later = T(1) - q * T(1.0 / 42) * (T(1) - q * T(1.0 / 72));
    const T chord = p[0] * dt * (T(1) - q * T(1.0 / 6) * (T(1) - q * T(1.0 / 20) * later));
    T sine, cosine;
    sine_cosine(s[2] + half, sine, cosine);
    const T before = distance(p[6] - s[0], p[7] - s[1]);
    s[0] = s[0] + chord * cosine + p[3] * dt;
    s[1] = s[1] + chord * sine + p[4] * dt;
    s[2] = s[2] + T(2) * half;
    const T after = distance(p[6] - s[0], p[7] - s[1]);
    const T arrived = after < goal_radius ? T(1) : T(0);
    const T gap1 = distance(p[8] - s[0], p[9] - s[1]) - p[10];
    const T gap2 = distance(p[11] - s[0], p[12] - s[1]) - p[13];
    const T gap3 = distance(p[14] - s[0], p[15] - s[1]) - p[16];
    return {before - after + bonus * arrived, min(min(gap1, gap2), gap3), arrived};
  }

  template <class T>
  SF_INLINE static T distance(T dx, T dy) {
    return sqrt(dx * dx + dy * dy);
  }
};

}  // namespace surefoot
