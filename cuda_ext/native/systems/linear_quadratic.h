// Linear system with quadratic cost, sizes chosen at run time. Equations: envs/systems/linear_quadratic.py.
#pragma once

#include "system.h"

namespace surefoot {

/// Element k of lane l is x[k * L + l]; `matrices` holds A (n, n), B (n, m), Q (n, n), R (m, m) row by row, c (n).
struct linear_quadratic {
  enum { block_style = 1, largest = 32 };

  template <class T, int L>
  SF_INLINE static void reset(const Sizes& n, const T*, T* s, const T* u, const T* p) {
    for (int i = 0; i < n.states; ++i) {
#pragma omp simd
      for (int l = 0; l < L; ++l) s[i * L + l] = p[3 * L + l] * (T(2) * u[i * L + l] - T(1));
    }
  }

  template <class T, int L>
  SF_INLINE static void observe(const Sizes& n, const T*, T* o, const T* s, const T*) {
    for (int i = 0; i < n.states; ++i) {
#pragma omp simd
      for (int l = 0; l < L; ++l) o[i * L + l] = s[i * L + l];
    }
  }

  /// sum += x^T M x, lane by lane.
  template <class T, int L>
  SF_INLINE static void add_form(int size, const T* matrix, const T* x, T* sum) {
    for (int i = 0; i < size; ++i) {
#pragma omp simd
      for (int l = 0; l < L; ++l) {
        T row = T(0);
        for (int k = 0; k < size; ++k) row = row + matrix[i * size + k] * x[k * L + l];
        sum[l] = sum[l] + x[i * L + l] * row;
      }
    }
  }

  template <class T, int L>
  SF_INLINE static void step(const Sizes& n, const T* matrices, T* s, const T* a, const T* p, const T* z, T* reward,
                             T* margin, T* terminated) {
    const int states = n.states, actions = n.actions;
    const T* const matrix_a = matrices;
    const T* const matrix_b = matrix_a + states * states;
    const T* const matrix_q = matrix_b + states * actions;
    const T* const matrix_r = matrix_q + states * states;
    const T* const normal = matrix_r + actions * actions;
    T next[largest * L], sum[L] = {};
    add_form<T, L>(states, matrix_q, s, sum);
    add_form<T, L>(actions, matrix_r, a, sum);
    for (int i = 0; i < states; ++i) {
#pragma omp simd
      for (int l = 0; l < L; ++l) {
        T drift = T(0), push = T(0);
        for (int k = 0; k < states; ++k) drift = drift + matrix_a[i * states + k] * s[k * L + l];
        for (int k = 0; k < actions; ++k) push = push + matrix_b[i * actions + k] * a[k * L + l];
        next[i * L + l] = p[1 * L + l] * drift + p[2 * L + l] * push + p[l] * z[i * L + l];
      }
    }
#pragma omp simd
    for (int l = 0; l < L; ++l) {
      reward[l] = -sum[l];
      margin[l] = p[4 * L + l];
      terminated[l] = T(0);
    }
    for (int i = 0; i < states; ++i) {
#pragma omp simd
      for (int l = 0; l < L; ++l) {
        s[i * L + l] = next[i * L + l];
        margin[l] = margin[l] - normal[i] * next[i * L + l];
      }
    }
  }
};

}  // namespace surefoot
