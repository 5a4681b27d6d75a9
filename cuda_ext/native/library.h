// The functions of levels/*.cpp that work on systems, as a table: of the module's own systems, and of a library with one
// system of a user's (outside/system_library.cpp), which python loads by its path.
#pragma once

#include "level.h"
#include "plan.h"
#include "rollout.h"
#include "rows.h"

SUREFOOT_DECLARE(int block_lanes(); long block_bytes(const Job& job);
                 void run_block(int system, const Job& job, int first, bool fresh, char* memory);
                 void reset_block(int system, const Job& job, int first, const unsigned char* mask, char* memory);
                 long plan_bytes(const PlanJob& job);
                 void plan_row(int system, const PlanJob& job, int row, char* memory);
                 void rows(int system, Call call, const Rows<float>& rows);
                 void rows(int system, Call call, const Rows<double>& rows))

namespace surefoot {

/// Of one instruction set. The first argument is the number of a system in the list that the table was compiled for.
struct Functions {
  int (*block_lanes)();
  long (*block_bytes)(const Job&);
  void (*run_block)(int, const Job&, int, bool, char*);
  void (*reset_block)(int, const Job&, int, const unsigned char*, char*);
  long (*plan_bytes)(const PlanJob&);
  void (*plan_row)(int, const PlanJob&, int, char*);
  void (*rows_of_floats)(int, Call, const Rows<float>&);
  void (*rows_of_doubles)(int, Call, const Rows<double>&);
};

enum { tables = static_cast<int>(Level::v4) + 1 };

/// A table for each `Level`; those that are not built are empty.
struct Levels {
  Functions at[tables];
};

#define SUREFOOT_TABLE(level)                                                                                       \
  {&level::block_lanes, &level::block_bytes, &level::run_block, &level::reset_block, &level::plan_bytes, \
   &level::plan_row, &level::rows, &level::rows}

/// What this build has.
inline const Levels& built_levels() {
#ifdef SUREFOOT_X86
  static const Levels all = {{{}, {}, SUREFOOT_TABLE(level_v2), SUREFOOT_TABLE(level_v3), SUREFOOT_TABLE(level_v4)}};
#else
  static const Levels all = {{SUREFOOT_TABLE(level_generic), {}, {}, {}, {}}};
#endif
  return all;
}

/// Sizes of what both sides of a table read; they differ where they were compiled from other headers.
struct Layout {
  int job, plan, rows;
};
constexpr Layout layout = {sizeof(Job), sizeof(PlanJob), sizeof(Rows<float>)};

/// What a library says of itself; `surefoot_library` returns it.
struct Library {
  Layout layout;
  const char* name;
  Sizes sizes;
  bool margin, state_of;  // the header has these functions
  const Levels* levels;
};

using LibraryFunction = const Library* (*)();
#define SUREFOOT_LIBRARY_FUNCTION "surefoot_library"

/// Where a system is found.
struct Found {
  const Levels* levels;
  int index;
  const Functions& functions() const { return levels->at[static_cast<int>(level())]; }
};

}  // namespace surefoot
