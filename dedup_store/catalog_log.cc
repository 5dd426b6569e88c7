#include "dedup_store/catalog_log.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dedup_store/coding.h"
#include "dedup_store/hashing.h"

namespace rekindle::store {

namespace {

constexpr char kHeaderMagic[] = "RKCATLOG";  // 8 bytes
constexpr uint32_t kLogVersion = 1;
// Every byte of the marks has several bits set, so no flip of one bit makes the end of a record look like
// blocks that were never written.
constexpr uint32_t kRecordMark = 0x78744b52;  // "RKtx"
constexpr uint32_t kEndMark = 0x6b6f6b6f;     // "okok"
constexpr size_t kHeadBytes = 16;
constexpr size_t kTrailerBytes = 12;
static_assert(kHeadBytes + kTrailerBytes == kLogRecordOverhead);
// The least that a disk writes as a whole.
constexpr uint64_t kSectorBytes = 512;

uint64_t HeadCheck(uint64_t nonce, uint64_t offset, uint32_t length) {
  Encoder e;
  e.U64(nonce);
  e.U64(offset);
  e.U32(length);
  return Checksum(e.out()).lo;
}

uint64_t PayloadCheck(uint64_t nonce, uint64_t offset, absl::string_view payload) {
  const Hash128 of_payload = Checksum(payload);
  Encoder e;
  e.U64(nonce);
  e.U64(offset);
  e.U64(payload.size());
  e.U64(of_payload.lo);
  e.U64(of_payload.hi);
  return Checksum(e.out()).lo;
}

absl::string_view From(absl::string_view bytes, uint64_t at) {
  return bytes.substr(std::min<uint64_t>(at, bytes.size()));
}

bool AllZero(absl::string_view bytes) { return bytes.find_first_not_of('\0') == absl::string_view::npos; }

class Reading {
 public:
  Reading(uint64_t nonce, uint64_t base, absl::string_view a, absl::string_view b)
      : nonce_(nonce), base_(base), copies_{a, b}, equal_(a == b) {}

  absl::StatusOr<LogContent> Run() {
    uint64_t at = 0;  // counted from base_, like all positions within the copies
    for (;;) {
      const std::optional<LogRecord> in_a = Whole(0, 0, at);
      const std::optional<LogRecord> in_b = equal_ ? in_a : Whole(1, 1, at);
      std::optional<LogRecord> record = in_a ? in_a : in_b;
      if (in_a && !in_b) {
        if (CouldBeUnwritten(at, in_a->bytes) && !Whole(0, 0, at + in_a->bytes)) {
          content_.undecided = true;
        } else {
          Damage(1, at);
        }
      } else if (in_b && !in_a) {
        Damage(0, at);
      } else if (!in_a) {
        record = Whole(0, 1, at);
        if (!record) record = Whole(1, 0, at);
        if (!record) break;
        Damage(0, at);
        Damage(1, at);
      }
      content_.records.push_back(*record);
      at += record->bytes;
    }
    content_.end = base_ + at;
    // Copy b is not touched before a is whole and synced.
    if (!AllZero(From(copies_[1], at)) || HasRecordBehind(at)) {
      return absl::DataLossError(absl::StrCat("damaged in both copies at offset ", content_.end));
    }
    return std::move(content_);
  }

 private:
  void Damage(int copy, uint64_t at) { content_.damage.push_back({copy, base_ + at}); }

  // The payload's length, when a copy has a whole head of a record there.
  std::optional<uint32_t> Head(int copy, uint64_t at) const {
    Decoder in(From(copies_[copy], at).substr(0, kHeadBytes));
    uint32_t mark = in.U32();
    uint32_t length = in.U32();
    uint64_t check = in.U64();
    if (!in.ok() || mark != kRecordMark || check != HeadCheck(nonce_, base_ + at, length))
      return std::nullopt;
    return length;
  }

  // The record, when one copy has its head whole and the other (or the same) the rest.
  std::optional<LogRecord> Whole(int head_copy, int body_copy, uint64_t at) const {
    const std::optional<uint32_t> length = Head(head_copy, at);
    if (!length) return std::nullopt;
    const absl::string_view body = From(copies_[body_copy], at + kHeadBytes);
    if (body.size() < uint64_t{*length} + kTrailerBytes) return std::nullopt;
    const absl::string_view payload = body.substr(0, *length);
    Decoder in(body.substr(*length, kTrailerBytes));
    if (in.U64() != PayloadCheck(nonce_, base_ + at, payload) || in.U32() != kEndMark) return std::nullopt;
    return LogRecord{base_ + at, kLogRecordOverhead + *length, payload};
  }

  // Whether what copy b has in place of a's record (and behind it) can be an unfinished write: each sector
  // is as it is to become, or empty as it was.
  bool CouldBeUnwritten(uint64_t at, uint64_t bytes) const {
    const absl::string_view a = From(copies_[0], at).substr(0, bytes);
    const absl::string_view b = From(copies_[1], at).substr(0, bytes);
    if (!AllZero(From(copies_[1], at + bytes))) return false;
    for (uint64_t i = 0; i < b.size();) {
      const uint64_t next = std::min<uint64_t>(b.size(), i + kSectorBytes - (base_ + at + i) % kSectorBytes);
      const absl::string_view there = b.substr(i, next - i);
      if (there != a.substr(i, next - i) && !AllZero(there)) return false;
      i = next;
    }
    return true;
  }

  // Looked for only where a's last write was interrupted.
  bool HasRecordBehind(uint64_t at) const {
    char mark[4];
    memcpy(mark, &kRecordMark, sizeof mark);
    const absl::string_view a = copies_[0];
    for (size_t i = a.find(absl::string_view(mark, 4), std::min<uint64_t>(at + 1, a.size()));
         i != absl::string_view::npos; i = a.find(absl::string_view(mark, 4), i + 1)) {
      if (Head(0, i)) return true;
    }
    return false;
  }

  const uint64_t nonce_, base_;
  const absl::string_view copies_[kLogCopies];
  const bool equal_;
  LogContent content_;
};

std::optional<LogHeader> DecodeHeader(absl::string_view bytes) {
  if (bytes.size() < kLogHeaderBytes) return std::nullopt;
  const absl::string_view body = bytes.substr(0, kLogHeaderBytes - 16);
  Decoder in(bytes.substr(8, kLogHeaderBytes - 8));
  uint32_t version = in.U32();
  in.U32();
  LogHeader header;
  header.generation = in.U64();
  header.nonce = in.U64();
  Hash128 check;
  check.lo = in.U64();
  check.hi = in.U64();
  if (body.substr(0, 8) != kHeaderMagic || version != kLogVersion || !(check == Checksum(body)))
    return std::nullopt;
  return header;
}

}  // namespace

std::string LogHeader::Encode() const {
  Encoder e;
  e.Raw(kHeaderMagic, 8);
  e.U32(kLogVersion);
  e.U32(0);
  e.U64(generation);
  e.U64(nonce);
  const Hash128 check = Checksum(e.out());
  e.U64(check.lo);
  e.U64(check.hi);
  return e.Take();
}

absl::StatusOr<LogHeader> FindLogHeader(absl::string_view a, absl::string_view b, bool damaged[kLogCopies]) {
  const std::optional<LogHeader> headers[kLogCopies] = {DecodeHeader(a), DecodeHeader(b)};
  for (int i = 0; i < kLogCopies; ++i) damaged[i] = !headers[i];
  if (!headers[0] && !headers[1]) return absl::DataLossError("damaged in both copies at offset 0");
  if (headers[0] && headers[1] && headers[0]->nonce != headers[1]->nonce)
    return absl::DataLossError("not one log: its two copies belong to different ones");
  return headers[0] ? *headers[0] : *headers[1];
}

std::string EncodeLogRecord(uint64_t nonce, uint64_t offset, absl::string_view payload) {
  const auto length = static_cast<uint32_t>(payload.size());
  Encoder e;
  e.U32(kRecordMark);
  e.U32(length);
  e.U64(HeadCheck(nonce, offset, length));
  e.Raw(payload.data(), payload.size());
  e.U64(PayloadCheck(nonce, offset, payload));
  e.U32(kEndMark);
  return e.Take();
}

absl::StatusOr<LogContent> ReadLogRecords(uint64_t nonce, uint64_t base, absl::string_view a,
                                          absl::string_view b) {
  return Reading(nonce, base, a, b).Run();
}

}  // namespace rekindle::store
