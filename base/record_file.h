// A protobuf message kept as a JSON file, which people can read and its owner alone may. All functions are
// thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace google::protobuf {
class Message;
}

namespace rekindle {

// What a record that was written outlives.
enum class RecordOutlives {
  kPowerLoss,  // synced
  kProcess,    // for records of what a reboot ends anyway: not synced, so nobody waits for a disk
};

// Durable when it returns OK. All at once: after a crash or an error `path` holds the old record or the new
// one. NotFound: its folder is not there; ResourceExhausted: the disk is full.
absl::Status WriteRecordFile(const std::string& path, const google::protobuf::Message& record,
                             RecordOutlives outlives = RecordOutlives::kPowerLoss);

// Removes what writers that died have left of records in this folder; what is being written just now stays.
void RemoveAbandonedRecords(const std::string& folder);

// Replaces what `record` holds. NotFound: there is no such file; DataLoss: it is damaged; any other error:
// it can't be read now.
//
// FailedPrecondition: it has fields, or values of enums, that this version does not know, so a newer one has
// written it. Such a record is refused, and is to be left as it is: what a field that was passed over asks
// for would not be done, and would be lost with the next write. Fields at their defaults are not written, so
// this meets those records alone that use what is new. `record` holds what this version knows of it, to tell
// people.
absl::Status ReadRecordFile(const std::string& path, google::protobuf::Message* record);
template <typename Record>
absl::StatusOr<Record> ReadRecordFile(const std::string& path) {
  Record record;
  RK_RETURN_IF_ERROR(ReadRecordFile(path, &record));
  return record;
}

// The same where the record has a number of its format, of which this version knows `format`: another one is
// FailedPrecondition where it is greater, and DataLoss where it is less.
absl::Status CheckRecordFormat(const std::string& path, uint32_t found, uint32_t format);
template <typename Record>
absl::StatusOr<Record> ReadRecordFile(const std::string& path, uint32_t format) {
  Record record;
  const absl::Status read = ReadRecordFile(path, &record);
  // That its format is a newer one says more than the name of a field.
  if (read.ok() || absl::IsFailedPrecondition(read))
    RK_RETURN_IF_ERROR(CheckRecordFormat(path, record.format(), format));
  RK_RETURN_IF_ERROR(read);
  return record;
}

// DataLoss that names the file; also for callers to whom what they have read makes no sense.
absl::Status UnusableRecord(const std::string& path, absl::string_view what);
// FailedPrecondition that names the file and says what to do: a newer version of Rekindle has written it.
absl::Status NewerRecord(const std::string& path, absl::string_view what);

}  // namespace rekindle
