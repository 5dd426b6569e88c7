// The catalog's log: a header, then one record for each transaction, kept in two copies that are equal byte
// for byte. docs/store-format.md describes it. What is here works on bytes in memory alone.
//
// What a crash can leave is limited by the order in which a transaction is written: copy a, sync, copy b,
// sync. So a record that is damaged in a while b has any of it was damaged later, by something else; and only
// the last record can be whole in a and missing in b.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle::store {

inline constexpr size_t kLogHeaderBytes = 48;
inline constexpr size_t kLogRecordOverhead = 28;
inline constexpr size_t kMaxLogPayload = size_t{1} << 30;
inline constexpr int kLogCopies = 2;

struct LogHeader {
  uint64_t generation = 0;
  uint64_t nonce = 0;  // random: no record of another log fits into this one

  std::string Encode() const;
};

// The header that is whole in either copy. `damaged[i]` tells whether copy i has none. DataLoss: neither has.
absl::StatusOr<LogHeader> FindLogHeader(absl::string_view a, absl::string_view b, bool damaged[kLogCopies]);

std::string EncodeLogRecord(uint64_t nonce, uint64_t offset, absl::string_view payload);

struct LogRecord {
  uint64_t offset = 0;
  uint64_t bytes = 0;  // of the whole record
  absl::string_view payload;
};

struct LogDamage {
  int copy = 0;
  uint64_t offset = 0;  // of the record
};

struct LogContent {
  std::vector<LogRecord> records;  // their payloads point into the copies
  std::vector<LogDamage> damage;   // records that only the other copy has
  // The last record is whole in copy a, and b has nothing else than a part of it, as if its writer was
  // stopped between the two or is at work.
  bool undecided = false;
  uint64_t end = 0;  // of the last record
};

// Reads records from `base` on; `a` and `b` are the copies' bytes from there to their ends. DataLoss: a
// record is damaged in both copies. What an interrupted writer left behind the last record is no damage.
absl::StatusOr<LogContent> ReadLogRecords(uint64_t nonce, uint64_t base, absl::string_view a,
                                          absl::string_view b);

}  // namespace rekindle::store
