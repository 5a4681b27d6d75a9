// A mass between two walls, pushed to rest at the origin. docs/cpp_systems.md says what each function is given.
#pragma once

#include "system.h"

namespace surefoot {

struct my_robot {
  // as many as __init__.py names, in its order
  enum { states = 2, actions = 1, observations = 2, parameters = 2, uniforms = 1, normals = 0 };

  // The first state, from numbers in [0, 1).
  template <class T>
  SF_INLINE static void reset(T (&s)[states], const T (&u)[uniforms], const T (&)[parameters]) {
    s[0] = T(2) * u[0] - T(1);
    s[1] = T(0);
  }

  // What the policy sees.
  template <class T>
  SF_INLINE static void observe(T (&o)[observations], const T (&s)[states], const T (&)[parameters]) {
    o[0] = s[0];
    o[1] = s[1];
  }

  // Safe if >= 0: metres to the nearer wall. A step with a negative one costs 1.
  template <class T>
  SF_INLINE static T margin(const T (&s)[states], const T (&)[parameters]) {
    return T(2) - abs(s[0]);
  }

  // One control step: the state is changed; reward, margin of the new state, and 1 where it ends the episode.
  template <class T>
  SF_INLINE static Outcome<T> step(T (&s)[states], const T (&a)[actions], const T (&p)[parameters], const T (&)[1]) {
    const T dt = T(0.05), mass = p[0], friction = p[1];
    const T acceleration = (a[0] - friction * s[1]) / mass;
    const T reward = -(s[0] * s[0] + T(0.1) * s[1] * s[1] + T(0.01) * a[0] * a[0]);
    s[0] = s[0] + dt * s[1] + T(0.5) * dt * dt * acceleration;
    s[1] = s[1] + dt * acceleration;
    return {reward, margin(s, p), abs(s[0]) > T(2.5) ? T(1) : T(0)};
  }
};

}  // namespace surefoot
