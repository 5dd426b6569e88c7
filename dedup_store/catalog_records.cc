#include "absl/strings/str_cat.h"
#include "dedup_store/catalog.h"
#include "dedup_store/coding.h"
#include "dedup_store/hashing.h"

namespace rekindle::store {

namespace {

constexpr uint8_t kImageRecordVersion = 1;

}  // namespace

std::string ImageRecord::Encode() const {
  Encoder body;
  body.U8(kImageRecordVersion);
  body.U64(id);
  body.U64(manifest_pack);
  body.String(info.reference);
  body.String(info.digest);
  body.String(info.parent_digest);
  body.Signed(info.created_unix_ns);
  body.Varint(info.owner);
  const ImageStats& s = info.stats;
  for (uint64_t v : {s.logical_bytes, s.zero_bytes, s.parent_bytes, s.shared_bytes, s.new_bytes,
                     s.stored_bytes, s.metadata_bytes}) {
    body.Varint(v);
  }
  body.Varint(info.labels.size());
  for (const auto& [key, value] : info.labels) {
    body.String(key);
    body.String(value);
  }
  Hash128 checksum = Checksum(body.out());
  body.U64(checksum.lo);
  return body.Take();
}

absl::StatusOr<ImageRecord> ImageRecord::Decode(absl::string_view bytes) {
  ImageRecord record;
  if (bytes.size() < 8) return absl::DataLossError("a catalog record of an image is too short");
  absl::string_view body = bytes.substr(0, bytes.size() - 8);
  Decoder tail(bytes.substr(body.size()));
  Decoder in(body);
  bool intact = tail.U64() == Checksum(body).lo;
  uint8_t version = in.U8();
  record.id = in.U64();
  record.manifest_pack = in.U64();
  record.info.reference = in.String();
  record.info.digest = in.String();
  record.info.parent_digest = in.String();
  record.info.created_unix_ns = in.Signed();
  record.info.owner = static_cast<uid_t>(in.Varint());
  ImageStats& s = record.info.stats;
  for (uint64_t* v : {&s.logical_bytes, &s.zero_bytes, &s.parent_bytes, &s.shared_bytes, &s.new_bytes,
                      &s.stored_bytes, &s.metadata_bytes}) {
    *v = in.Varint();
  }
  uint64_t labels = in.Varint();
  for (uint64_t i = 0; in.ok() && i < labels; ++i) {
    std::string key = in.String();
    record.info.labels[std::move(key)] = in.String();
  }
  if (!intact || !in.AtEnd() || version != kImageRecordVersion) {
    return absl::DataLossError(
        absl::StrCat("the catalog record of image ", record.info.reference, " is damaged"));
  }
  return record;
}

}  // namespace rekindle::store
