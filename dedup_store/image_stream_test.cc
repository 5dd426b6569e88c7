#include "dedup_store/image_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/status.h"

namespace rekindle::store {
namespace {

v1::ImageStreamRecord Header() {
  v1::ImageStreamRecord record;
  record.mutable_header()->set_version(kImageStreamVersion);
  record.mutable_header()->set_reference("train:7");
  return record;
}

v1::ImageStreamRecord BlobRecord(const std::string& name) {
  v1::ImageStreamRecord record;
  record.mutable_blob()->set_name(name);
  record.mutable_blob()->set_last(true);
  return record;
}

std::string SomeStream() {
  std::string bytes;
  ImageStreamWriter writer([&](absl::string_view piece) {
    bytes.append(piece.data(), piece.size());
    return absl::OkStatus();
  });
  EXPECT_TRUE(writer.Put(Header()).ok());
  EXPECT_TRUE(writer.Put(BlobRecord("first"), "what the first one holds").ok());
  EXPECT_TRUE(writer.Put(BlobRecord("empty")).ok());
  EXPECT_TRUE(writer.End().ok());
  return bytes;
}

// In small pieces, as a pipe may give it.
ImageStreamReader ReaderOf(const std::string& bytes) {
  return ImageStreamReader([&bytes, at = size_t{0}](absl::Span<std::byte> out) mutable {
    const size_t n = std::min({out.size(), bytes.size() - at, size_t{7}});
    std::memcpy(out.data(), bytes.data() + at, n);
    at += n;
    return absl::StatusOr<size_t>(n);
  });
}

// What is said of the first thing that is wrong; `content` gets what was read.
absl::Status ReadAll(const std::string& bytes, std::string* content) {
  ImageStreamReader reader = ReaderOf(bytes);
  RK_ASSIGN_OR_RETURN(const v1::ImageStreamHeader header, reader.ReadHeader());
  *content = header.reference();
  for (;;) {
    RK_ASSIGN_OR_RETURN(const v1::ImageStreamRecord record, reader.Next());
    if (record.has_end()) return absl::OkStatus();
    RK_ASSIGN_OR_RETURN(const std::string data, reader.ReadData());
    *content += "|" + record.blob().name() + "=" + data;
  }
}

TEST(ImageStream, GivesWhatWasPut) {
  std::string content;
  EXPECT_EQ(ReadAll(SomeStream(), &content), absl::OkStatus());
  EXPECT_EQ(content, "train:7|first=what the first one holds|empty=");
}

TEST(ImageStream, CutOffAnywhereItIsNotComplete) {
  const std::string whole = SomeStream();
  for (size_t length = 0; length < whole.size(); ++length) {
    std::string content;
    const absl::Status status = ReadAll(whole.substr(0, length), &content);
    EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsInvalidArgument(status)) << length << ": " << status;
  }
}

TEST(ImageStream, NoBitOfItCanBeAnother) {
  const std::string whole = SomeStream();
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    std::string content;
    EXPECT_FALSE(ReadAll(flipped, &content).ok()) << "bit " << bit;
  }
}

TEST(ImageStream, NothingMayFollow) {
  std::string content;
  EXPECT_TRUE(absl::IsDataLoss(ReadAll(SomeStream() + "x", &content)));
}

TEST(ImageStream, OtherFilesAndNewerVersionsAreRefusedByName) {
  std::string content;
  const absl::Status other = ReadAll(std::string(4096, 'x'), &content);
  EXPECT_TRUE(absl::IsInvalidArgument(other)) << other;

  std::string bytes;
  ImageStreamWriter writer([&](absl::string_view piece) {
    bytes.append(piece.data(), piece.size());
    return absl::OkStatus();
  });
  v1::ImageStreamRecord newer = Header();
  newer.mutable_header()->set_version(kImageStreamVersion + 1);
  newer.mutable_header()->set_made_by("9.1");
  ASSERT_TRUE(writer.Put(newer).ok());
  const absl::Status refused = ReadAll(bytes, &content);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << "it is not damaged";
  EXPECT_NE(refused.message().find("made by Rekindle 9.1"), std::string::npos) << refused;
}

// The beginning of a stream with one blob, of which the record says that this is its compressed data.
std::string WithCompressedBlob(absl::string_view data) {
  v1::ImageStreamRecord record = BlobRecord("b");
  record.set_zstd(true);
  std::string bytes;
  ImageStreamWriter writer([&](absl::string_view piece) {
    bytes.append(piece.data(), piece.size());
    return absl::OkStatus();
  });
  EXPECT_TRUE(writer.Put(Header()).ok());
  EXPECT_TRUE(writer.Put(record, data).ok());
  return bytes;
}

TEST(ImageStream, CompressedDataIsAsLongAsItIsSaidToBe) {
  const std::string bytes = WithCompressedBlob("this is no zstd");
  ImageStreamReader reader = ReaderOf(bytes);
  ASSERT_TRUE(reader.ReadHeader().ok());
  ASSERT_TRUE(reader.Next().ok());
  std::string room(4096, '\0'), compressed;
  const auto out = absl::MakeSpan(reinterpret_cast<std::byte*>(room.data()), room.size());
  ASSERT_TRUE(reader.ReadDataAsSent(out, &compressed).ok());
  EXPECT_EQ(compressed, "this is no zstd");
  const absl::Status status = DecompressStreamData(compressed, out);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST(ImageStream, CompressedToNothingIsNoData) {
  const std::string bytes = WithCompressedBlob("");
  ImageStreamReader reader = ReaderOf(bytes);
  ASSERT_TRUE(reader.ReadHeader().ok());
  ASSERT_TRUE(reader.Next().ok());
  std::string room(4096, '\0'), compressed;
  const absl::Status status = reader.ReadDataAsSent(
      absl::MakeSpan(reinterpret_cast<std::byte*>(room.data()), room.size()), &compressed);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

}  // namespace
}  // namespace rekindle::store
