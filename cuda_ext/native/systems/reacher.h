// Two-link reacher with obstacle disc and joint limit. Equations: envs/systems/reacher.py.
#pragma once

#include "system.h"

namespace surefoot {

struct reacher {
  enum { states = 6, actions = 2, observations = 10, parameters = 14, uniforms = 6, normals = 2 };

  template <class T>
  SF_INLINE static void reset(T (&s)[states], const T (&u)[uniforms], const T (&p)[parameters]) {
    const T clearance = T(0.6), turn = T(2 * 3.14159265358979323846 - 1.2);
    const T nearest = T(0.06 * 0.06), range = T(0.2 * 0.2 - 0.06 * 0.06);
    s[0] = T(0.2) * u[0] - T(0.1);
    s[1] = T(0.2) * u[1] - T(0.1);
    s[2] = T(0.01) * u[2] - T(0.005);
    s[3] = T(0.01) * u[3] - T(0.005);
    const T radius = sqrt(nearest + range * u[5]);
    T sine, cosine;
    sine_cosine(p[11] + clearance + turn * u[4], sine, cosine);
    s[4] = radius * cosine;
    s[5] = radius * sine;
  }

  template <class T>
  SF_INLINE static void observe(T (&o)[observations], const T (&s)[states], const T (&p)[parameters]) {
    T c1, s1, c2, s2;
    sine_cosine(s[0], s1, c1);
    sine_cosine(s[1], s2, c2);
    o[0] = c1;
    o[1] = c2;
    o[2] = s1;
    o[3] = s2;
    o[4] = s[4];
    o[5] = s[5];
    o[6] = s[2];
    o[7] = s[3];
    o[8] = p[2] * c1 + p[3] * (c1 * c2 - s1 * s2) - s[4];
    o[9] = p[2] * s1 + p[3] * (s1 * c2 + c1 * s2) - s[5];
  }

  /// Angular accelerations of shoulder and elbow, rad/s^2, under the motors' torques, N m.
  template <class T>
  SF_INLINE static void accelerations(T shoulder, T elbow, T w1, T w2, T torque_1, T torque_2,
                                      const T (&p)[parameters], T& a1, T& a2) {
    const T mass_1 = p[0], mass_2 = p[1], length_1 = p[2], length_2 = p[3], payload = p[4], armature = p[5];
    const T friction = p[7], gravity = p[8];
    const T inertia_2 = (mass_2 * T(1.0 / 3.0) + payload) * length_2 * length_2;
    const T moment_2 = (T(0.5) * mass_2 + payload) * length_2;
    const T inertia_1 = (mass_1 * T(1.0 / 3.0) + mass_2 + payload) * length_1 * length_1;
    const T per_cosine_1 = gravity * (T(0.5) * mass_1 + mass_2 + payload) * length_1;
    const T per_cosine_2 = gravity * moment_2, per_elbow = length_1 * moment_2;
    T sine, cosine;
    sine_cosine(elbow, sine, cosine);
    const T coupling = per_elbow * cosine, swirl = per_elbow * sine;
    const T m11 = inertia_1 + inertia_2 + T(2) * coupling + armature;
    const T m12 = inertia_2 + coupling;
    const T m22 = inertia_2 + armature;
    const T weight_2 = per_cosine_2 * cos(shoulder + elbow);
    const T weight_1 = per_cosine_1 * cos(shoulder) + weight_2;
    const T f1 = torque_1 - friction * w1 + swirl * (T(2) * w1 * w2 + w2 * w2) - weight_1;
    const T f2 = torque_2 - friction * w2 - swirl * w1 * w1 - weight_2;
    const T per_determinant = T(1) / (m11 * m22 - m12 * m12);
    a1 = (m22 * f1 - m12 * f2) * per_determinant;
    a2 = (m11 * f2 - m12 * f1) * per_determinant;
  }

  /// One step of the classical Runge-Kutta method.
  template <class T>
  SF_INLINE static void integrate(T (&s)[states], T t1, T t2, T dt, const T (&p)[parameters]) {
    const T half = T(0.5) * dt, sixth = dt / T(6);
    T a1, a2, a3, a4, b1, b2, b3, b4;
    accelerations(s[0], s[1], s[2], s[3], t1, t2, p, a1, b1);
    const T v2 = s[2] + half * a1, w2 = s[3] + half * b1;
    accelerations(s[0] + half * s[2], s[1] + half * s[3], v2, w2, t1, t2, p, a2, b2);
    const T v3 = s[2] + half * a2, w3 = s[3] + half * b2;
    accelerations(s[0] + half * v2, s[1] + half * w2, v3, w3, t1, t2, p, a3, b3);
    const T v4 = s[2] + dt * a3, w4 = s[3] + dt * b3;
    accelerations(s[0] + dt * v3, s[1] + dt * w3, v4, w4, t1, t2, p, a4, b4);
    s[0] = s[0] + sixth * (s[2] + T(2) * v2 + T(2) * v3 + v4);
    s[1] = s[1] + sixth * (s[3] + T(2) * w2 + T(2) * w3 + w4);
    s[2] = s[2] + sixth * (a1 + T(2) * a2 + T(2) * a3 + a4);
    s[3] = s[3] + sixth * (b1 + T(2) * b2 + T(2) * b3 + b4);
  }

  /// Distance of the point (x, y) to the segment from the origin to its end.
  template <class T>
  SF_INLINE static T to_segment(T x, T y, T end_x, T end_y) {
    const T along = clip((x * end_x + y * end_y) / (end_x * end_x + end_y * end_y), T(0), T(1));
    const T away_x = x - along * end_x, away_y = y - along * end_y;
    return sqrt(away_x * away_x + away_y * away_y);
  }

  template <class T>
  SF_INLINE static Endless<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters],
                                   const T (&z)[normals]) {
    const T length_1 = p[2], length_2 = p[3], torque = p[6], noise = p[9], elbow_limit = p[13];
    const T t1 = torque * (a[0] + noise * z[0]), t2 = torque * (a[1] + noise * z[1]);
    integrate(s, t1, t2, T(0.01), p);
    integrate(s, t1, t2, T(0.01), p);
    T c1, s1, c12, s12, obstacle_x, obstacle_y;
    sine_cosine(s[0], s1, c1);
    sine_cosine(s[0] + s[1], s12, c12);
    sine_cosine(p[11], obstacle_y, obstacle_x);
    obstacle_x = p[10] * obstacle_x;
    obstacle_y = p[10] * obstacle_y;
    const T elbow_x = length_1 * c1, elbow_y = length_1 * s1, fore_x = length_2 * c12, fore_y = length_2 * s12;
    const T error_x = elbow_x + fore_x - s[4], error_y = elbow_y + fore_y - s[5];
    const T reward = T(-10) * sqrt(error_x * error_x + error_y * error_y) - T(0.05) * (a[0] * a[0] + a[1] * a[1]);
    const T upper = to_segment(obstacle_x, obstacle_y, elbow_x, elbow_y);
    const T fore = to_segment(obstacle_x - elbow_x, obstacle_y - elbow_y, fore_x, fore_y);
    return {reward, min(min(upper, fore) - p[12], length_2 * (elbow_limit - abs(s[1])))};
  }
};

}  // namespace surefoot
