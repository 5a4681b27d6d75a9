// Systems applied to rows one at a time, for tests.
#include "../rows.h"

#include "../level.h"
#include "systems.inc"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

template <int n, class T>
void load(T (&to)[n], const T* from) {
  for (int k = 0; k < n; ++k) to[k] = from[k];
}

template <class System, class T>
void one_row(Call call, const Rows<T>& r, long row) {
  const Sizes& n = r.sizes;
  T* const state = r.states + row * n.states;
  const T* const given = r.parameters + row * n.parameters;
  if constexpr (block_style<System>) {
    if (call == Call::reset) {
      System::template reset<T, 1>(n, r.matrices, state, r.uniforms + row * n.uniforms, given);
    } else if (call == Call::observe) {
      System::template observe<T, 1>(n, r.matrices, r.observations + row * n.observations, state, given);
    } else {
      System::template step<T, 1>(n, r.matrices, state, r.actions + row * n.actions, given, r.normals + row * n.normals,
                                  r.rewards + row, r.margins + row, r.terminated + row);
    }
  } else {
    T s[System::states], p[System::parameters];
    load(s, state);
    load(p, given);
    if (call == Call::reset) {
      T u[System::uniforms];
      load(u, r.uniforms + row * n.uniforms);
      System::template reset<T>(s, u, p);
    } else if (call == Call::observe) {
      T o[System::observations];
      System::template observe<T>(o, s, p);
      for (int k = 0; k < n.observations; ++k) r.observations[row * n.observations + k] = o[k];
    } else if (call == Call::margin) {
      if constexpr (has_margin<System>) r.margins[row] = System::template margin<T>(s, p);
    } else if (call == Call::state_of) {
      if constexpr (has_state_of<System>) {
        T o[System::observations];
        load(o, r.observations + row * n.observations);
        System::template state_of<T>(s, o, p);
      }
    } else {
      constexpr int draws = System::normals > 0 ? int(System::normals) : 1;
      T a[System::actions], z[draws] = {};
      load(a, r.actions + row * n.actions);
      if constexpr (System::normals > 0) load(z, r.normals + row * n.normals);
      const Outcome<T> outcome = System::template step<T>(s, a, p, z);
      r.rewards[row] = outcome.reward;
      r.margins[row] = outcome.margin;
      r.terminated[row] = outcome.terminated;
    }
    for (int k = 0; k < n.states; ++k) state[k] = s[k];
  }
}

template <class T>
void dispatch(int system, Call call, const Rows<T>& rows) {
  int index = 0;
#define SUREFOOT_ROWS(name) \
  if (index++ == system) \
    for (long row = 0; row < rows.count; ++row) one_row<::surefoot::name, T>(call, rows, row);
  SUREFOOT_SYSTEMS(SUREFOOT_ROWS)
#undef SUREFOOT_ROWS
}

}  // namespace

void rows(int system, Call call, const Rows<float>& rows) { dispatch(system, call, rows); }
void rows(int system, Call call, const Rows<double>& rows) { dispatch(system, call, rows); }

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
