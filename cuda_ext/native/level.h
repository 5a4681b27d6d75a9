// Which build of a translation unit this is: levels/*.cpp are compiled once per instruction set.
#pragma once

#define SUREFOOT_JOIN_(a, b) a##b
#define SUREFOOT_JOIN(a, b) SUREFOOT_JOIN_(a, b)

#ifdef SUREFOOT_LEVEL
#define SUREFOOT_NAMESPACE SUREFOOT_JOIN(level_, SUREFOOT_LEVEL)
#endif

namespace surefoot {

/// The instruction sets of the builds, lowest first; `generic` is the only one off x86-64.
enum class Level { generic = 0, v2 = 2, v3 = 3, v4 = 4 };

/// The highest build that this processor can run, or the one that `set_level` chose.
Level level();

/// Use a lower build (tests compare them). Returns false where this processor lacks it.
bool set_level(Level wanted);

#ifdef SUREFOOT_LEVEL
namespace SUREFOOT_NAMESPACE {
#if defined(__AVX512F__)
constexpr int register_bytes = 64;  // of a vector
#elif defined(__AVX__)
constexpr int register_bytes = 32;
#else
constexpr int register_bytes = 16;
#endif
constexpr int register_floats = register_bytes / static_cast<int>(sizeof(float));
}  // namespace SUREFOOT_NAMESPACE
#endif

}  // namespace surefoot

/// Declare a function of levels/*.cpp, and call the build of it that this processor runs best:
///   SUREFOOT_DECLARE(float chains(long))  ...  SUREFOOT_CALL(chains, 1000)
#ifdef SUREFOOT_X86
#define SUREFOOT_DECLARE(...)        \
  namespace surefoot {               \
  namespace level_v2 { __VA_ARGS__; } \
  namespace level_v3 { __VA_ARGS__; } \
  namespace level_v4 { __VA_ARGS__; } \
  }
#define SUREFOOT_CALL(function, ...)                                                            \
  (::surefoot::level() == ::surefoot::Level::v4   ? ::surefoot::level_v4::function(__VA_ARGS__) \
   : ::surefoot::level() == ::surefoot::Level::v3 ? ::surefoot::level_v3::function(__VA_ARGS__) \
                                                  : ::surefoot::level_v2::function(__VA_ARGS__))
#else
#define SUREFOOT_DECLARE(...) \
  namespace surefoot {        \
  namespace level_generic { __VA_ARGS__; } \
  }
#define SUREFOOT_CALL(function, ...) ::surefoot::level_generic::function(__VA_ARGS__)
#endif
