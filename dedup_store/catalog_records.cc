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
  record.info.commit_number = record.id;
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

std::string PackRecord::Encode() const {
  Encoder e;
  e.U64(id);
  e.U64(file_bytes);
  e.U64(stored_bytes);
  e.U32(frames);
  e.U32(pages);
  e.U64(index_id);
  return e.Take();
}

absl::StatusOr<PackRecord> PackRecord::Decode(absl::string_view bytes) {
  Decoder in(bytes);
  PackRecord record;
  record.id = in.U64();
  record.file_bytes = in.U64();
  record.stored_bytes = in.U64();
  record.frames = in.U32();
  record.pages = in.U32();
  record.index_id = in.U64();
  if (!in.AtEnd()) return absl::DataLossError("a catalog record of a pack is damaged");
  return record;
}

std::string DeadRecord::Encode() const {
  std::string bits((dead.size() + 7) / 8, '\0');
  for (size_t i = 0; i < dead.size(); ++i) {
    if (dead[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << (i % 8));
  }
  Encoder e;
  e.U8(given_back ? 1 : 0);
  e.Varint(dead.size());
  e.String(bits);
  return e.Take();
}

absl::StatusOr<DeadRecord> DeadRecord::Decode(absl::string_view bytes) {
  Decoder in(bytes);
  DeadRecord record;
  record.given_back = in.U8() != 0;
  const uint64_t count = in.Varint();
  const std::string bits = in.String();
  if (!in.AtEnd() || count > bits.size() * 8 || bits.size() != (count + 7) / 8) {
    return absl::DataLossError("a pack's list of dead frames in the catalog is damaged");
  }
  record.dead.resize(count);
  for (uint64_t i = 0; i < count; ++i) record.dead[i] = (bits[i / 8] >> (i % 8)) & 1;
  return record;
}

std::string IndexRecord::Encode() const {
  Encoder e;
  e.U64(id);
  e.U64(entries);
  e.U64(file_bytes);
  return e.Take();
}

absl::StatusOr<IndexRecord> IndexRecord::Decode(absl::string_view bytes) {
  Decoder in(bytes);
  IndexRecord record;
  record.id = in.U64();
  record.entries = in.U64();
  record.file_bytes = in.U64();
  if (!in.AtEnd()) return absl::DataLossError("a catalog record of an index is damaged");
  return record;
}

}  // namespace rekindle::store
