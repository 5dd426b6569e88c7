// A protobuf message kept as a JSON file, which people can read and its owner alone may. All functions are
// thread-safe.
#pragma once

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

// Replaces what `record` holds; fields that this version does not know are passed over. NotFound: there is no
// such file; DataLoss: it is damaged.
absl::Status ReadRecordFile(const std::string& path, google::protobuf::Message* record);
template <typename Record>
absl::StatusOr<Record> ReadRecordFile(const std::string& path) {
  Record record;
  RK_RETURN_IF_ERROR(ReadRecordFile(path, &record));
  return record;
}

// DataLoss that names the file; also for callers to whom what they have read makes no sense.
absl::Status UnusableRecord(const std::string& path, absl::string_view what);

}  // namespace rekindle
