// One observation at a time into running moments, and normalised by them: what an environment that is stepped alone asks
// for. Python passes addresses of memory of the right sizes. Products and sums are not fused (CMakeLists.txt): the
// numbers are those of numpy's operations, one after another.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace nb = nanobind;

namespace surefoot {
namespace {

template <class T>
T* to(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

/// False, with nothing changed, where a value is not finite.
bool take_one(long streams, long width, std::uintptr_t values_at, std::uintptr_t count_at, std::uintptr_t mean_at,
              std::uintptr_t squares_at, double epsilon, double limit, std::uintptr_t used_mean_at,
              std::uintptr_t used_scale_at, std::uintptr_t out_at) {
  const float* const values = to<float>(values_at);
  for (long i = 0; i < streams * width; ++i)
    if (!std::isfinite(values[i])) return false;
  const float most = static_cast<float>(limit);
  for (long stream = 0; stream < streams; ++stream) {
    double* const count = to<double>(count_at) + stream;
    const double total = *count + 1.0;
    for (long i = stream * width; i < (stream + 1) * width; ++i) {
      double &mean = to<double>(mean_at)[i], &squares = to<double>(squares_at)[i];
      float &used_mean = to<float>(used_mean_at)[i], &used_scale = to<float>(used_scale_at)[i];
      const double shift = static_cast<double>(values[i]) - mean;
      squares += shift * shift * *count / total;
      mean += shift / total;
      used_mean = static_cast<float>(mean);
      used_scale = static_cast<float>(std::sqrt(squares / total + epsilon));
      const float found = (values[i] - used_mean) / used_scale;
      to<float>(out_at)[i] = std::isinf(most) ? found : std::min(std::max(found, -most), most);
    }
    *count = total;
  }
  return true;
}

}  // namespace

void bind_moments(nb::module_& m) {
  m.def("take_one", &take_one, nb::arg("streams"), nb::arg("width"), nb::arg("values"), nb::arg("count"),
        nb::arg("mean"), nb::arg("squares"), nb::arg("epsilon"), nb::arg("limit"), nb::arg("used_mean"),
        nb::arg("used_scale"), nb::arg("out"),
        "Take one value of each stream into count, mean and sum of squared deviations (double), write mean and scale in "
        "float, and the value normalised by them; false, with nothing changed, where it is not finite.");
}

}  // namespace surefoot
