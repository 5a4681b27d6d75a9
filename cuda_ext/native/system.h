// What a system is: the contract of systems/<name>.h, of which systems/pendulum.h is the shortest example.
#pragma once

#include "maths.h"

namespace surefoot {

/// What one control step gives beside the new state.
template <class T>
struct Outcome {
  T reward;
  T margin;      // signed, of the new state: safe if >= 0
  T terminated;  // 0 or 1
};

/// What a step gives where the system never ends an episode: rollouts then need not look for ends between time limits.
template <class T>
struct Endless {
  T reward;
  T margin;
  SF_INLINE operator Outcome<T>() const { return {reward, margin, T(0)}; }
};

/// Widths of a system's arrays.
struct Sizes {
  int states, actions, observations, parameters, uniforms, normals;
};

/// A system whose widths are known when it is compiled works on one lane; one whose widths are chosen at run time
/// (`enum { block_style = 1 };`, see systems/linear_quadratic.h) works on a block of lanes.
struct Style {
  template <class System>
  static constexpr bool of_block(decltype(System::block_style)*) {
    return true;
  }
  template <class System>
  static constexpr bool of_block(...) {
    return false;
  }
};
template <class System>
constexpr bool block_style = Style::of_block<System>(nullptr);

/// Whether steps of `System` give `Endless`, and which parameter's terms rollouts may leave out where it is 0 for all
/// environments (`enum { optional = index };`, -1 without it). Of systems that work on one lane.
struct Traits {
  template <class T, class... Arguments>
  static constexpr bool never_ends(Endless<T> (*)(Arguments...)) {
    return true;
  }
  template <class T, class... Arguments>
  static constexpr bool never_ends(Outcome<T> (*)(Arguments...)) {
    return false;
  }
  template <class System>
  static constexpr bool has_margin(decltype(&System::template margin<float>)) {
    return true;
  }
  template <class System>
  static constexpr bool has_margin(...) {
    return false;
  }
  template <class System>
  static constexpr bool has_state_of(decltype(&System::template state_of<float>)) {
    return true;
  }
  template <class System>
  static constexpr bool has_state_of(...) {
    return false;
  }
  template <class System>
  static constexpr int optional(decltype(System::optional)*) {
    return System::optional;
  }
  template <class System>
  static constexpr int optional(...) {
    return -1;
  }
};
template <class System>
constexpr bool endless = Traits::never_ends(&System::template step<float>);
template <class System>
constexpr int optional_parameter = Traits::optional<System>(nullptr);

/// Whether `System` says the margin of any state, `T margin(s, p)`, and the state of an observation,
/// `void state_of(s, o, p)`: reachability and filters need them.
template <class System>
constexpr bool has_margin = Traits::has_margin<System>(nullptr);
template <class System>
constexpr bool has_state_of = Traits::has_state_of<System>(nullptr);

/// The widths of `System`; zeros where they are chosen at run time.
template <class System>
constexpr Sizes sizes_of() {
  if constexpr (block_style<System>) {
    return {0, 0, 0, 0, 0, 0};
  } else {
    return {System::states,     System::actions,  System::observations,
            System::parameters, System::uniforms, System::normals};
  }
}

}  // namespace surefoot
