#include "restore/prefill_note.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "dedup_store/hashing.h"
#include "dedup_store/place_step.h"
#include "dedup_store/store_testing.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;
using store::StatusOf;

class TextNote : public store::NoteReader {
 public:
  explicit TextNote(std::string text) : text_(std::move(text)) {}
  uint64_t bytes() const override { return text_.size(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> out) const override {
    if (offset > text_.size() || out.size() > text_.size() - offset)
      return absl::DataLossError("ends before");
    memcpy(out.data(), text_.data() + offset, out.size());
    return absl::OkStatus();
  }
  void WillNeed() const override {}

 private:
  const std::string text_;
};

class PrefillNoteTest : public testing::Test {
 protected:
  // Chunks of each kind: noise, text, pointers.
  void SetUp() override {
    head_.image.fill(1);
    head_.working_set.fill(2);
    head_.recorded = {{7, 0x40000000, 100, 90}, {7, 0x50000000, 4000, 70}, {9, 0x40000000, 3, 100}};
    head_.written = {{7, 0x7f0000000000, 0, 130}, {9, 0x1000, 0, 1}};
    pages_ = store::MakePages(head_.pages(), 3);
    char* const bytes = pages_.data();
    memset(bytes + PrefillNoteHead::kChunkPages * kPageSize, 'x', 100 * kPageSize);
    for (uint64_t i = 0; i < 128 * kPageSize / 8; ++i) {
      const uint64_t pointer = 0x7f1234000000 + i * 0x9e3779b9 % 0xffffff;
      memcpy(bytes + (2 * PrefillNoteHead::kChunkPages) * kPageSize + i * 8, &pointer, 8);
    }
  }

  std::string Encode() {
    auto parts = EncodePrefillNote(head_, Bytes(&pages_), [] { return true; });
    EXPECT_TRUE(parts.ok()) << parts.status();
    std::string all;
    for (const std::string& part : *parts) all += part;
    head_bytes_ = parts->front().size();
    return all;
  }
  static absl::Span<std::byte> Bytes(std::string* text) {
    return {reinterpret_cast<std::byte*>(text->data()), text->size()};
  }
  absl::Status Load(const std::string& note, std::string* pages) {
    pages->assign(pages_.size(), '?');
    return LoadPrefillNote(TextNote(note), head_, Bytes(pages));
  }

  PrefillNoteHead head_;
  std::string pages_;
  size_t head_bytes_ = 0;
};

TEST_F(PrefillNoteTest, GivesBackWhatWasPutIn) {
  const std::string note = Encode();
  EXPECT_LT(note.size(), pages_.size());
  auto head = PrefillNoteHead::Decode(note.substr(0, head_bytes_));
  RK_ASSERT_OK(head);
  EXPECT_EQ(head->recorded, head_.recorded);
  EXPECT_EQ(head->written, head_.written);
  ASSERT_EQ(head->chunks.size(), 4u);
  EXPECT_EQ(head->chunks[0].codec, PrefillNoteHead::Chunk::Codec::kRaw);
  EXPECT_EQ(head->chunks[1].codec, PrefillNoteHead::Chunk::Codec::kZstd);
  EXPECT_EQ(head->chunks[2].codec, PrefillNoteHead::Chunk::Codec::kZstdOfPlanes);
  std::string loaded;
  RK_ASSERT_OK(Load(note, &loaded));
  EXPECT_TRUE(loaded == pages_);
}

TEST_F(PrefillNoteTest, OfNothing) {
  head_.recorded.clear();
  head_.written.clear();
  pages_.clear();
  std::string loaded;
  RK_ASSERT_OK(Load(Encode(), &loaded));
}

TEST_F(PrefillNoteTest, AHeadThatIsReadInTwoPieces) {
  head_.recorded.clear();
  for (uint64_t i = 0; i < 20000; ++i) head_.recorded.push_back({7, i * 0x100000, i * 100, 1});
  pages_ = store::MakePages(head_.pages(), 4);
  std::string loaded;
  const std::string note = Encode();
  EXPECT_GT(head_bytes_, size_t{64} << 10);
  RK_ASSERT_OK(Load(note, &loaded));
  EXPECT_TRUE(loaded == pages_);
}

TEST_F(PrefillNoteTest, EveryLengthOfTheHeadAndSomeOfTheRestAreRefused) {
  const std::string note = Encode();
  std::string loaded;
  for (size_t size = 0; size < note.size(); size += size < head_bytes_ ? 1 : 4999) {
    EXPECT_TRUE(absl::IsDataLoss(Load(note.substr(0, size), &loaded))) << size;
  }
  EXPECT_TRUE(absl::IsDataLoss(Load(note.substr(0, note.size() - 1), &loaded)));
  EXPECT_TRUE(absl::IsDataLoss(Load(note + "x", &loaded)));
  for (size_t size = 0; size < head_bytes_; ++size) {
    EXPECT_TRUE(absl::IsDataLoss(PrefillNoteHead::Decode(note.substr(0, size)).status())) << size;
  }
}

TEST_F(PrefillNoteTest, AFlippedBitAnywhereIsRefused) {
  const std::string note = Encode();
  std::string loaded;
  for (size_t i = 0; i < note.size(); i += (i < head_bytes_ ? 1 : 1999) * store::kPlaceStep) {
    std::string bad = note;
    bad[i] ^= static_cast<char>(1 << (i % 8));
    EXPECT_TRUE(absl::IsDataLoss(Load(bad, &loaded))) << i;
  }
  std::string bad = note;
  bad.back() ^= 1;
  EXPECT_TRUE(absl::IsDataLoss(Load(bad, &loaded)));
}

TEST_F(PrefillNoteTest, ThatOfSomethingElseIsNotUsed) {
  const std::string note = Encode();
  const PrefillNoteHead same = head_;
  std::string loaded;
  head_.image[31] ^= 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(Load(note, &loaded)));
  head_ = same;
  head_.working_set[0] ^= 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(Load(note, &loaded)));
  head_ = same;
  head_.recorded[1].number += 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(Load(note, &loaded)));
  head_ = same;
  head_.written[0].address += kPageSize;
  EXPECT_TRUE(absl::IsFailedPrecondition(Load(note, &loaded)));
  head_ = same;
  RK_ASSERT_OK(Load(note, &loaded));
}

TEST_F(PrefillNoteTest, ANewerVersionIsNotDamaged) {
  std::string head = Encode().substr(0, head_bytes_);
  head[8] = 2;
  store::Sha256 sha;
  sha.Update(head.data(), head.size() - sizeof(Sha256Digest));
  const Sha256Digest digest = sha.Finish();
  memcpy(head.data() + head.size() - digest.size(), digest.data(), digest.size());
  EXPECT_TRUE(absl::IsFailedPrecondition(PrefillNoteHead::Decode(head).status()));
}

TEST_F(PrefillNoteTest, WhoMayNotGoOnEnds) {
  int asked = 0;
  auto parts = EncodePrefillNote(head_, Bytes(&pages_), [&asked] { return ++asked < 3; });
  EXPECT_TRUE(absl::IsCancelled(parts.status())) << parts.status();
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace rekindle::restore
