// Files that SQLite keeps beside a database, by name. What one of them says holds only with the others as
// they were at that moment.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace rekindle {

inline constexpr absl::string_view kBesideDatabase[] = {"-wal", "-shm", "-journal"};

// "X" of "X-wal", "X-shm" and "X-journal"; empty: it has no such name.
inline absl::string_view DatabaseBeside(absl::string_view path) {
  for (const absl::string_view suffix : kBesideDatabase) {
    absl::string_view database = path;
    if (absl::ConsumeSuffix(&database, suffix) && !database.empty() && database.back() != '/')
      return database;
  }
  return "";
}

}  // namespace rekindle
