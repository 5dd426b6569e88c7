#include "dedup_store/image_stream.h"

#include <zstd.h>

#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::store {
namespace {

constexpr absl::string_view kStreamMagic = "rekindle-image1\n";
constexpr uint32_t kMaxRecordBytes = 1u << 20;

std::array<char, 4> LittleEndian(uint32_t value) {
  return {static_cast<char>(value), static_cast<char>(value >> 8), static_cast<char>(value >> 16),
          static_cast<char>(value >> 24)};
}

uint32_t FromLittleEndian(const std::array<uint8_t, 4>& bytes) {
  return bytes[0] | static_cast<uint32_t>(bytes[1]) << 8 | static_cast<uint32_t>(bytes[2]) << 16 |
         static_cast<uint32_t>(bytes[3]) << 24;
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the image stream is damaged (", what, "): send it once more"));
}

}  // namespace

std::string OriginOf(const ImageInfo& image) {
  auto label = image.labels.find(v1::kOriginLabel);
  return label == image.labels.end() ? image.digest : label->second;
}

absl::Status DecompressStreamData(absl::string_view compressed, absl::Span<std::byte> out) {
  const size_t n = ZSTD_decompress(out.data(), out.size(), compressed.data(), compressed.size());
  if (ZSTD_isError(n) || n != out.size()) return Damaged("a record's data can't be decompressed");
  return absl::OkStatus();
}

absl::Status ImageStreamWriter::Send(absl::string_view bytes) {
  if (bytes.empty()) return absl::OkStatus();
  hash_.Update(bytes.data(), bytes.size());
  bytes_ += bytes.size();
  return sink_(bytes);
}

absl::Status ImageStreamWriter::SendRecord(const v1::ImageStreamRecord& record) {
  const std::string message = record.SerializeAsString();
  if (message.size() > kMaxRecordBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a record of ", message.size(), " bytes is too long"));
  }
  const std::array<char, 4> length = LittleEndian(static_cast<uint32_t>(message.size()));
  RK_RETURN_IF_ERROR(Send({length.data(), length.size()}));
  return Send(message);
}

absl::Status ImageStreamWriter::Put(v1::ImageStreamRecord record, absl::string_view data) {
  if (data.size() > kMaxStreamData) return absl::InternalError("too much data for one record");
  if (bytes_ == 0) RK_RETURN_IF_ERROR(Send(kStreamMagic));
  record.set_data_bytes(static_cast<uint32_t>(data.size()));
  RK_RETURN_IF_ERROR(SendRecord(record));
  return Send(data);
}

absl::Status ImageStreamWriter::End() {
  const std::array<uint8_t, 32> digest = hash_.Finish();
  v1::ImageStreamRecord record;
  record.mutable_end()->set_sha256(digest.data(), digest.size());
  return SendRecord(record);
}

absl::Status ImageStreamReader::Fill(void* out, size_t size) {
  for (size_t done = 0; done < size;) {
    RK_ASSIGN_OR_RETURN(const size_t n,
                        source_(absl::MakeSpan(static_cast<std::byte*>(out) + done, size - done)));
    if (n == 0 && empty_) {
      return absl::DataLossError("nothing came: whoever was to send an image has failed");
    }
    empty_ = false;
    if (n == 0) {
      return absl::DataLossError(
          "the image stream ends before the image does: whoever sent it was interrupted; send it once more");
    }
    done += n;
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ImageStreamHeader> ImageStreamReader::ReadHeader() {
  std::array<char, kStreamMagic.size()> magic;
  absl::Status read = Fill(magic.data(), magic.size());
  if (empty_) return read;
  if (absl::IsDataLoss(read) ||
      (read.ok() && absl::string_view(magic.data(), magic.size()) != kStreamMagic)) {
    return absl::InvalidArgumentError(
        "it is no image of Rekindle's: give what 'rekindle export --file' wrote");
  }
  RK_RETURN_IF_ERROR(read);
  hash_.Update(magic.data(), magic.size());
  RK_ASSIGN_OR_RETURN(v1::ImageStreamRecord record, ReadRecord());
  if (!record.has_header() || data_bytes_ != 0) return Damaged("it has no header");
  if (record.header().version() != kImageStreamVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the image stream is of version ", record.header().version(), ", made by Rekindle ",
                     record.header().made_by(), "; this Rekindle reads version ", kImageStreamVersion,
                     ": take a newer one here"));
  }
  return std::move(*record.mutable_header());
}

absl::StatusOr<v1::ImageStreamRecord> ImageStreamReader::ReadRecord() {
  if (data_bytes_ != 0) return absl::InternalError("the data of the record before was not read");
  std::array<uint8_t, 4> length;
  RK_RETURN_IF_ERROR(Fill(length.data(), length.size()));
  const uint32_t bytes = FromLittleEndian(length);
  if (bytes > kMaxRecordBytes) return Damaged("a record has an impossible length");
  std::string message(bytes, '\0');
  RK_RETURN_IF_ERROR(Fill(message.data(), message.size()));
  v1::ImageStreamRecord record;
  if (!record.ParseFromString(message)) return Damaged("a record can't be read");
  if (record.data_bytes() > kMaxStreamData) return Damaged("a record has more data than there can be");
  if (record.has_end()) {
    RK_RETURN_IF_ERROR(CheckEnd(record.end()));
    if (record.data_bytes() != 0) return Damaged("its end has data");
    return record;
  }
  hash_.Update(length.data(), length.size());
  hash_.Update(message.data(), message.size());
  data_bytes_ = record.data_bytes();
  zstd_ = record.zstd();
  return record;
}

absl::StatusOr<v1::ImageStreamRecord> ImageStreamReader::Next() { return ReadRecord(); }

absl::Status ImageStreamReader::CheckEnd(const v1::ImageStreamEnd& end) {
  const std::array<uint8_t, 32> digest = hash_.Finish();
  if (end.sha256() != absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()))
    return Damaged("its SHA-256 is another than was sent");
  std::byte behind;
  RK_ASSIGN_OR_RETURN(const size_t n, source_(absl::MakeSpan(&behind, 1)));
  if (n != 0) return Damaged("something follows its end");
  return absl::OkStatus();
}

absl::Status ImageStreamReader::ReadAsItIs(void* out, size_t size) {
  data_bytes_ = 0;
  RK_RETURN_IF_ERROR(Fill(out, size));
  hash_.Update(out, size);
  return absl::OkStatus();
}

absl::Status ImageStreamReader::ReadDataAsSent(absl::Span<std::byte> out, std::string* compressed) {
  compressed->clear();
  if (zstd_) {
    if (data_bytes_ == 0) return Damaged("a record has not as much data as it says");
    compressed->resize(data_bytes_);
    return ReadAsItIs(compressed->data(), compressed->size());
  }
  if (data_bytes_ != out.size()) return Damaged("a record has not as much data as it says");
  return ReadAsItIs(out.data(), out.size());
}

absl::StatusOr<std::string> ImageStreamReader::ReadData() {
  std::string data(data_bytes_, '\0');
  RK_RETURN_IF_ERROR(ReadAsItIs(data.data(), data.size()));
  if (!zstd_) return data;
  const std::string compressed = std::move(data);
  const unsigned long long bytes = ZSTD_getFrameContentSize(compressed.data(), compressed.size());
  if (bytes > kMaxStreamData) return Damaged("a record's data can't be decompressed");
  std::string plain(bytes, '\0');
  RK_RETURN_IF_ERROR(
      DecompressStreamData(compressed, {reinterpret_cast<std::byte*>(plain.data()), plain.size()}));
  return plain;
}

}  // namespace rekindle::store
