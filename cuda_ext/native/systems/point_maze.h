// A ball in a maze, with exact collision against its walls. Equations: envs/systems/point_maze.py.
#pragma once

#include "system.h"

namespace surefoot {

struct point_maze {
  enum { states = 4, actions = 2, observations = 6, parameters = 12, uniforms = 3, normals = 2 };

  template <class T>
  SF_INLINE static void reset(T (&s)[states], const T (&u)[uniforms], const T (&)[parameters]) {
    // The free cells are numbered in reading order; (number, walls) of each run of walls that lies before a free one.
    const T cell = floor(u[0] * T(26));
    const T place = T(9) + cell + walls(cell, 2, 2) + walls(cell, 4, 2) + walls(cell, 6, 1) + walls(cell, 9, 3) +
                    walls(cell, 12, 4) + walls(cell, 14, 1) + walls(cell, 17, 2) + walls(cell, 18, 1) +
                    walls(cell, 20, 1) + walls(cell, 21, 2) + walls(cell, 24, 1);
    const T row = floor(place * T(0.125));
    s[0] = place - T(8) * row + T(0.5) + T(0.4) * (u[1] - T(0.5));
    s[1] = row + T(0.5) + T(0.4) * (u[2] - T(0.5));
    s[2] = T(0);
    s[3] = T(0);
  }

  template <class T>
  SF_INLINE static void observe(T (&o)[observations], const T (&s)[states], const T (&p)[parameters]) {
    o[0] = s[0];
    o[1] = s[1];
    o[2] = s[2];
    o[3] = s[3];
    o[4] = p[7] - s[0];
    o[5] = p[8] - s[1];
  }

  template <class T>
  SF_INLINE static Endless<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters],
                                   const T (&z)[normals]) {
    const T goal_reach = T(0.45);
    const T per_mass = T(1) / p[0], rate = p[2] * per_mass;
    const T ax = (p[1] * clip(a[0] + p[6] * z[0], T(-1), T(1)) + p[3]) * per_mass;
    const T ay = (p[1] * clip(a[1] + p[6] * z[1], T(-1), T(1)) + p[4]) * per_mass;
    substep(s[0], s[1], s[2], s[3], ax, ay, rate, p[5]);
    substep(s[0], s[1], s[2], s[3], ax, ay, rate, p[5]);

    const T gx = s[0] - p[7], gy = s[1] - p[8];
    const T reward = sqrt(gx * gx + gy * gy) <= goal_reach ? T(1) : T(0);
    const T out_x = abs(s[0] - p[9]) - p[11], out_y = abs(s[1] - p[10]) - p[11];
    const T far_x = max(out_x, T(0)), far_y = max(out_y, T(0));
    const T margin = sqrt(far_x * far_x + far_y * far_y) + min(max(out_x, out_y), T(0));
    return {reward, margin};
  }

  /// `count` where the free cell `cell` comes after that run of walls, which the cell `first` follows.
  template <class T>
  SF_INLINE static T walls(T cell, int first, int count) {
    return cell >= T(first) ? T(count) : T(0);
  }

  /// Whether (x, y) lies in a wall; points off the drawing count as its rim.
  template <class T>
  SF_INLINE static bool wall_at(T x, T y) {
    // bit 8 row + column; min before max, so that what is not a number becomes 7
    const int bit = 8 * static_cast<int>(max(min(y, T(7)), T(0))) + static_cast<int>(max(min(x, T(7)), T(0)));
    const uint32 upper = 0xe38999ffu, lower = 0xff91a589u;  // rows 0 to 3 and 4 to 7
    const uint32 word = bit < 32 ? upper : lower;
    return ((word >> (bit & 31)) & 1u) != 0;
  }

  /// Displacement and new speed after `h` seconds of v' = a - rate v, exactly.
  template <class T>
  SF_INLINE static void free_motion(T& v, T& dx, T a, T rate, T h) {
    const T q = rate * h, max_speed = T(5);
    T phi2 = T(1) - q * T(1.0 / 6) * (T(1) - q * T(1.0 / 7) * (T(1) - q * T(1.0 / 8)));
    phi2 = T(0.5) - q * T(1.0 / 6) * (T(1) - q * T(1.0 / 4) * (T(1) - q * T(1.0 / 5) * phi2));
    const T phi1 = T(1) - q * phi2;
    dx = h * (v * phi1 + a * h * phi2);
    v = clip(v + h * phi1 * (a - rate * v), -max_speed, max_speed);
  }

  /// Move x by dx while y stands still, up to the wall in the way or mirrored at it.
  template <bool along_x, class T>
  SF_INLINE static void move(T& x, T& v, T dx, T y, T restitution) {
    const T radius = T(0.1), beside = T(0.1 - 1e-4), cell = floor(x);
    const bool forward = dx > T(0);
    const T ahead = forward ? cell + T(1) : cell - T(1);
    const T bound = forward ? cell + (T(1) - radius) : cell + radius;
    const bool wall = along_x ? wall_at(ahead, y - beside) | wall_at(ahead, y + beside)
                              : wall_at(y - beside, ahead) | wall_at(y + beside, ahead);
    const T beyond = x + dx - bound;
    const bool hit = wall & (forward ? beyond > T(0) : beyond < T(0));
    x = hit ? bound - restitution * beyond : x + dx;
    v = hit ? -restitution * v : v;
  }

  template <class T>
  SF_INLINE static void substep(T& x, T& y, T& vx, T& vy, T ax, T ay, T rate, T restitution) {
    T dx, dy;
    free_motion(vx, dx, ax, rate, T(0.05));
    free_motion(vy, dy, ay, rate, T(0.05));
    move<true>(x, vx, dx, y, restitution);
    move<false>(y, vy, dy, x, restitution);
  }
};

}  // namespace surefoot
