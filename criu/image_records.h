// CRIU's image files as sequences of records. Within criu/ only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "criu/images.pb.h"
#include "google/protobuf/message_lite.h"

namespace rekindle::criu {

// Every image begins with the common magic, then its own; the inventory has only its own. Service files
// (statistics) have another common one.
inline constexpr uint32_t kCommonMagic = 0x54564319;
inline constexpr uint32_t kServiceMagic = 0x55105940;
inline constexpr uint32_t kInventoryMagic = 0x58313116;
inline constexpr uint32_t kPstreeMagic = 0x50273030;
inline constexpr uint32_t kPagemapMagic = 0x56084025;
inline constexpr uint32_t kMmMagic = 0x57492820;
inline constexpr uint32_t kCoreMagic = 0x55053847;
inline constexpr uint32_t kFilesMagic = 0x56303138;
inline constexpr uint32_t kRemapMagic = 0x59133954;
inline constexpr uint32_t kGhostMagic = 0x52583605;
inline constexpr uint32_t kStatsMagic = 0x57093306;
inline constexpr uint32_t kTcpStreamMagic = 0x51465506;
inline constexpr uint32_t kFdinfoMagic = 0x56213732;
inline constexpr uint32_t kFsMagic = 0x51403912;
inline constexpr uint32_t kIdsMagic = 0x54432030;
inline constexpr uint32_t kFileLocksMagic = 0x54323616;
inline constexpr uint32_t kTtyInfoMagic = 0x59453036;

inline constexpr uint32_t kRegularFileType = 1;

// Is nothing but its end left of this process?
inline bool HasEnded(const pb::Core& core) {
  constexpr uint32_t kDead = 2, kZombie = 6;
  return core.task().state() == kDead || core.task().state() == kZombie;
}

inline uint32_t ReadLittleEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

inline void AppendLittleEndian(uint32_t value, std::string* out) {
  for (size_t i = 0; i < 4; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

inline absl::Status Damaged(absl::string_view kind, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("reading a CRIU ", kind, " image: ", what,
                                          "; the image is damaged or of another kind: take it again"));
}

// Walks the records of an image file held in memory.
class RecordReader {
 public:
  static absl::StatusOr<RecordReader> Open(absl::string_view kind, absl::string_view content, uint32_t magic,
                                           uint32_t common = kCommonMagic) {
    for (uint32_t expected : {common, magic}) {
      if (expected == 0) continue;
      if (content.size() < 4) return Damaged(kind, "it ends within its head");
      if (uint32_t found = ReadLittleEndian(content); found != expected) {
        return Damaged(kind, absl::StrFormat("its magic is %#x, not %#x", found, expected));
      }
      content.remove_prefix(4);
    }
    return RecordReader(kind, content);
  }

  bool AtEnd() const { return rest_.empty(); }
  absl::string_view rest() const { return rest_; }

  absl::Status Next(google::protobuf::MessageLite* message) {
    if (rest_.size() < 4) return Damaged(kind_, "it ends within a record's length");
    uint32_t length = ReadLittleEndian(rest_);
    rest_.remove_prefix(4);
    if (length > rest_.size()) {
      return Damaged(kind_, absl::StrCat("a record of ", length, " bytes where ", rest_.size(), " are left"));
    }
    if (!message->ParseFromArray(rest_.data(), static_cast<int>(length))) {
      return Damaged(kind_, "a record can't be decoded");
    }
    rest_.remove_prefix(length);
    return absl::OkStatus();
  }

  // The only record of an image that must have exactly one.
  absl::Status Only(google::protobuf::MessageLite* message) {
    RK_RETURN_IF_ERROR(Next(message));
    if (!AtEnd()) return Damaged(kind_, "something follows its only record");
    return absl::OkStatus();
  }

 private:
  RecordReader(absl::string_view kind, absl::string_view rest) : kind_(kind), rest_(rest) {}

  absl::string_view kind_;
  absl::string_view rest_;
};

// Gives each record of an image, of which all are a `Record`, to `visit`. One after the other: of a damaged
// image all together could be many times its size.
template <class Record, class Visit>
absl::Status ForEachRecord(absl::string_view kind, absl::string_view content, uint32_t magic,
                           const Visit& visit) {
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open(kind, content, magic));
  while (!reader.AtEnd()) {
    Record record;
    RK_RETURN_IF_ERROR(reader.Next(&record));
    visit(record);
  }
  return absl::OkStatus();
}

// Of a files.img.
template <class Visit>
absl::Status ForEachFile(absl::string_view content, const Visit& visit) {
  return ForEachRecord<pb::FileEntry>("files", content, kFilesMagic, visit);
}

// Of a remap-fpath.img; of an empty one, as a dump without has it, none.
template <class Visit>
absl::Status ForEachRemap(absl::string_view content, const Visit& visit) {
  if (content.empty()) return absl::OkStatus();
  return ForEachRecord<pb::RemapEntry>("remap-fpath", content, kRemapMagic, visit);
}

class RecordWriter {
 public:
  explicit RecordWriter(uint32_t magic) {
    AppendLittleEndian(kCommonMagic, &content_);
    AppendLittleEndian(magic, &content_);
  }
  void Add(const google::protobuf::MessageLite& message) {
    std::string record = message.SerializeAsString();
    AppendLittleEndian(static_cast<uint32_t>(record.size()), &content_);
    content_ += record;
  }
  std::string Take() { return std::move(content_); }

 private:
  std::string content_;
};

}  // namespace rekindle::criu
