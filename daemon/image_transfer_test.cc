// An image from one store to another: restore/send_image.h and ckpt/receive_image.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ckpt/receive_image.h"
#include "dedup_store/store_testing.h"
#include "rekindle/v1/copy_link.h"
#include "rekindle/v1/image_layout.h"
#include "restore/image_parts.h"
#include "restore/send_image.h"

namespace rekindle::store {
namespace {

constexpr char kObject[] = "mem/1";
constexpr uid_t kOwner = 7;

class ImageTransferTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    auto folder = TemporaryDirectory::Make(testing::TempDir(), "rekindle_other_store.");
    RK_ASSERT_OK(folder);
    other_folder_ = std::make_unique<TemporaryDirectory>(*std::move(folder));
    StoreOptions options;
    options.path = other_folder_->path() + "/store";
    auto other = Store::Open(options);
    RK_ASSERT_OK(other);
    other_ = *std::move(other);

    memory_ = MakePages(700, 1) + MakePages(100, 2, Content::kZero) + MakePages(200, 3, Content::kText);
    first_.objects[kObject][0] = memory_;
    first_.objects[kObject][kFar] = MakePages(3, 4);
    first_.blobs[v1::kJobManifestObject] = "the job";
    first_.blobs["large"] = std::string(9u << 20, 'b');
    first_.blobs["empty"] = "";
    RK_ASSERT_OK(first_.Commit(*store_, "job:1"));
    second_ = first_;
    second_.objects[kObject][0].replace(50 * kPageSize, 3 * kPageSize, MakePages(3, 9));
    second_.objects[kObject][0].replace(750 * kPageSize, kPageSize, MakePages(1, 10));
    second_.objects[kObject][0].replace(10 * kPageSize, kPageSize, std::string(kPageSize, '\0'));
    second_.objects["mem/2"][0] = MakePages(5, 11);
    RK_ASSERT_OK(second_.Commit(*store_, "job:2"));
  }

  absl::StatusOr<std::string> Sent(const std::string& image, const std::string& base = "") {
    return SentBy(*store_, image, base);
  }
  static absl::StatusOr<std::string> SentBy(const Store& store, const std::string& image,
                                            const std::string& base) {
    std::string bytes;
    restore::SendOptions options;
    RK_ASSIGN_OR_RETURN(options.image, store.Find(image));
    if (!base.empty()) {
      RK_ASSIGN_OR_RETURN(options.base, store.Find(base));
    }
    auto sent = restore::SendImage(store, options, [&](absl::string_view piece) {
      bytes.append(piece.data(), piece.size());
      return absl::OkStatus();
    });
    if (!sent.ok()) return sent.status();
    EXPECT_EQ(sent->bytes, bytes.size());
    return bytes;
  }

  absl::StatusOr<ckpt::ReceivedImage> Receive(const std::string& bytes, const std::string& name = "",
                                              uid_t owner = kOwner) {
    return ReceiveInto(*other_, bytes, name, owner);
  }
  absl::StatusOr<ckpt::ReceivedImage> ReceiveInto(Store& store, const std::string& bytes,
                                                  const std::string& name, uid_t owner) const {
    ckpt::ReceiveOptions options;
    options.reference = name;
    options.owner = owner;
    options.staging_budget_bytes = 8u << 20;  // so that some of it goes through the file
    options.spill_directory = other_folder_->path();
    options.rest_budget_bytes = rest_budget_;
    size_t at = 0;
    return ckpt::ReceiveImage(store, options, [&](absl::Span<std::byte> out) -> absl::StatusOr<size_t> {
      const size_t n = std::min({out.size(), bytes.size() - at, size_t{100'000}});
      std::memcpy(out.data(), bytes.data() + at, n);
      at += n;
      return n;
    });
  }

  static constexpr uint64_t kFar = 5000 * kPageSize;
  std::string memory_;
  uint64_t rest_budget_ = 16u << 20;
  TestImage first_, second_;
  std::unique_ptr<TemporaryDirectory> other_folder_;
  std::unique_ptr<Store> other_;
};

TEST_F(ImageTransferTest, ArrivesWhole) {
  auto bytes = Sent("job:1");
  RK_ASSERT_OK(bytes);
  auto received = Receive(*bytes);
  RK_ASSERT_OK(received);
  EXPECT_FALSE(received->was_there);
  EXPECT_EQ(received->image.reference, "job:1");
  EXPECT_EQ(received->image.owner, kOwner);
  EXPECT_EQ(OriginOf(received->image), store_->Find("job:1")->digest);
  first_.ExpectIn(*other_, "job:1");
}

TEST_F(ImageTransferTest, OnlyWhatHasChangedIsSentAndTheRestIsAsItWas) {
  auto whole = Sent("job:1"), changed = Sent("job:2", "job:1");
  RK_ASSERT_OK(whole);
  RK_ASSERT_OK(changed);
  EXPECT_LT(changed->size(), (10u << 20) / 2);
  RK_ASSERT_OK(Receive(*whole, "copy:a"));  // under another name, which does not matter
  auto received = Receive(*changed);
  RK_ASSERT_OK(received);
  EXPECT_GT(received->image.stats.parent_bytes, 800 * kPageSize);
  second_.ExpectIn(*other_, "job:2");
}

TEST_F(ImageTransferTest, WithoutItsBaseItIsRefusedByName) {
  auto changed = Sent("job:2", "job:1");
  RK_ASSERT_OK(changed);
  auto refused = Receive(*changed);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_NE(refused.status().message().find("job:1"), std::string::npos);
  // What another user has called so may hold anything.
  auto whole = Sent("job:1");
  RK_ASSERT_OK(Receive(*whole, "", kOwner + 1));
  EXPECT_TRUE(absl::IsFailedPrecondition(Receive(*changed).status()));
  EXPECT_TRUE(Receive(*changed, "", kOwner + 1).ok());
}

TEST_F(ImageTransferTest, TwiceAtTheSameTimeItIsThereForTheSecond) {
  auto bytes = Sent("job:1");
  RK_ASSERT_OK(bytes);
  ckpt::ReceiveOptions options;
  options.owner = kOwner;
  options.spill_directory = other_folder_->path();
  size_t at = 0;
  auto second =
      ckpt::ReceiveImage(*other_, options, [&](absl::Span<std::byte> out) -> absl::StatusOr<size_t> {
        const bool half = at < bytes->size() / 2;
        const size_t n = std::min({out.size(), bytes->size() - at, size_t{100'000}});
        std::memcpy(out.data(), bytes->data() + at, n);
        at += n;
        if (half && at >= bytes->size() / 2) RK_RETURN_IF_ERROR(Receive(*bytes).status());
        return n;
      });
  RK_ASSERT_OK(second);
  EXPECT_TRUE(second->was_there);
  EXPECT_EQ(second->image.digest, other_->Find("job:1")->digest);
  first_.ExpectIn(*other_, "job:1");
}

TEST_F(ImageTransferTest, AgainItIsThereAndBackHomeToo) {
  auto bytes = Sent("job:1");
  RK_ASSERT_OK(bytes);
  RK_ASSERT_OK(Receive(*bytes));
  auto again = Receive(*bytes);
  RK_ASSERT_OK(again);
  EXPECT_TRUE(again->was_there);

  // What was taken from the copy goes back as what has changed since the image that it is a copy of.
  RK_ASSERT_OK(second_.Commit(*other_, "job:3"));
  auto back = SentBy(*other_, "job:3", "job:1");
  RK_ASSERT_OK(back);
  EXPECT_LT(back->size(), bytes->size() / 4);
  RK_ASSERT_OK(ReceiveInto(*store_, *back, "", 0));
  second_.ExpectIn(*store_, "job:3");
}

TEST_F(ImageTransferTest, CutOffAnywhereItLeavesNothing) {
  auto bytes = Sent("job:1");
  RK_ASSERT_OK(bytes);
  for (size_t part = 0; part < 40; ++part) {
    auto cut = Receive(bytes->substr(0, bytes->size() * part / 40));
    EXPECT_FALSE(cut.ok()) << part;
  }
  EXPECT_TRUE(other_->List()->empty());
  RK_ASSERT_OK(Receive(*bytes));
  first_.ExpectIn(*other_, "job:1");
}

TEST_F(ImageTransferTest, FlippedBitsAreFound) {
  auto bytes = Sent("job:1");
  RK_ASSERT_OK(bytes);
  for (size_t part = 1; part < 60; ++part) {
    std::string flipped = *bytes;
    char& byte = flipped[bytes->size() / 60 * part + part % 7];
    byte = static_cast<char>(byte ^ 1 << part % 8);
    EXPECT_FALSE(Receive(flipped).ok()) << part;
  }
  EXPECT_TRUE(other_->List()->empty());
}

TEST_F(ImageTransferTest, CancelledWhileItIsComparedNothingIsSent) {
  const std::atomic<bool> cancel{true};
  restore::SendOptions options;
  options.image = *store_->Find("job:2");
  options.base = *store_->Find("job:1");
  options.cancel = &cancel;
  size_t sent = 0;
  auto cancelled = restore::SendImage(*store_, options, [&](absl::string_view piece) {
    sent += piece.size();
    return absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsCancelled(cancelled.status())) << cancelled.status();
  EXPECT_EQ(sent, 0u);
}

TEST_F(ImageTransferTest, IsBeingStoredWhileItComesAndNobodySeesIt) {
  auto bytes = Sent("job:1");
  RK_ASSERT_OK(bytes);
  ckpt::ReceiveOptions options;
  options.owner = kOwner;
  options.spill_directory = other_folder_->path();
  size_t at = 0;
  bool had_pack = false;
  auto received =
      ckpt::ReceiveImage(*other_, options, [&](absl::Span<std::byte> out) -> absl::StatusOr<size_t> {
        const size_t n = std::min({out.size(), bytes->size() - at, size_t{100'000}});
        std::memcpy(out.data(), bytes->data() + at, n);
        at += n;
        if (at == bytes->size()) {
          had_pack = !std::filesystem::is_empty(other_folder_->path() + "/store/packs");
          EXPECT_TRUE(other_->List()->empty());
        }
        return n;
      });
  RK_ASSERT_OK(received);
  EXPECT_TRUE(had_pack);
  first_.ExpectIn(*other_, "job:1");
}

TEST_F(ImageTransferTest, ItsNameGoesAlongAndNotThatOfAnotherWithItsDigest) {
  auto bytes = Sent("job:1");
  RK_ASSERT_OK(bytes);
  RK_ASSERT_OK(Receive(*bytes, "a:1", kOwner));
  RK_ASSERT_OK(Receive(*bytes, "b:9", kOwner + 1));
  ASSERT_EQ(other_->Find("a:1")->digest, other_->Find("b:9")->digest);
  uid_t receiver = 100;
  for (const char* name : {"a:1", "b:9"}) {
    auto sent = SentBy(*other_, name, "");
    RK_ASSERT_OK(sent);
    auto received = ReceiveInto(*store_, *sent, "", receiver++);
    RK_ASSERT_OK(received);
    EXPECT_EQ(received->image.reference, name);
  }
}

TEST_F(ImageTransferTest, OfImagesWithOneDigestATagAndTheDigestFindTheOneThatIsNamed) {
  auto bytes = Sent("job:1");
  RK_ASSERT_OK(bytes);
  for (const char* name : {"a:1", "a:2", "a:3"}) RK_ASSERT_OK(Receive(*bytes, name));
  const std::string digest = other_->Find("a:1")->digest;
  for (const std::string name : {"a:1", "a:2", "a:3"}) {
    auto found = other_->Find(name + "@" + digest);
    RK_ASSERT_OK(found);
    EXPECT_EQ(found->digest, digest);
    EXPECT_EQ(found->reference, name);
  }
  // The tag may have moved on.
  auto found = other_->Find("a:9@" + digest);
  RK_ASSERT_OK(found);
  EXPECT_EQ(found->reference.substr(0, 2), "a:");
}

// Images that are sent as parts of a MiB each.
class ImagePartsTest : public ImageTransferTest {
 protected:
  struct Stream {
    restore::SendPart part;
    std::string bytes;
  };

  absl::StatusOr<std::vector<Stream>> Parts(const std::string& image, const std::string& base = "",
                                            std::vector<std::string> there = {}) {
    std::vector<Stream> streams;
    restore::SendOptions options;
    RK_ASSIGN_OR_RETURN(options.image, store_->Find(image));
    if (!base.empty()) {
      RK_ASSIGN_OR_RETURN(options.base, store_->Find(base));
    }
    options.part_bytes = 1u << 20;
    options.parts_there = std::move(there);
    options.begin_part = [&](const restore::SendPart& part) {
      streams.push_back({part, ""});
      return absl::OkStatus();
    };
    uint64_t done = 0;
    options.progress = [&](uint64_t now, uint64_t total) {
      EXPECT_GE(now, done);
      EXPECT_LE(now, total);
      done = now;
      return true;
    };
    RK_RETURN_IF_ERROR(restore::SendImage(*store_, options, [&](absl::string_view piece) {
                         streams.back().bytes.append(piece.data(), piece.size());
                         return absl::OkStatus();
                       }).status());
    return streams;
  }

  absl::StatusOr<ckpt::ReceivedImage> Take(const Stream& stream) {
    if (stream.part.last) return Receive(stream.bytes);
    const std::string digits = stream.part.origin.substr(sizeof("sha256:") - 1, v1::kCopyLinkDigits);
    return Receive(stream.bytes, absl::StrCat(v1::kCopyLinkName, digits, ":part"));
  }
};

TEST_F(ImagePartsTest, OneUponTheOtherTheyAreTheImage) {
  auto streams = Parts("job:1");
  RK_ASSERT_OK(streams);
  ASSERT_GE(streams->size(), 3u);
  EXPECT_EQ(streams->front().part.base, "");
  for (size_t i = 0; i < streams->size(); ++i) {
    const Stream& stream = (*streams)[i];
    if (i > 0) {
      EXPECT_EQ(stream.part.base, (*streams)[i - 1].part.origin);
    }
    EXPECT_EQ(stream.part.last, i + 1 == streams->size());
    auto received = Take(stream);
    RK_ASSERT_OK(received);
    EXPECT_EQ(OriginOf(received->image), stream.part.origin);
    EXPECT_EQ(v1::IsCopyLink(received->image.reference, received->image.labels), !stream.part.last);
  }
  EXPECT_EQ(streams->back().part.origin, store_->Find("job:1")->digest);
  first_.ExpectIn(*other_, "job:1");
}

TEST_F(ImagePartsTest, WhatHasArrivedIsNotSentAgain) {
  auto streams = Parts("job:1");
  RK_ASSERT_OK(streams);
  ASSERT_GE(streams->size(), 3u);
  size_t all = 0;
  for (const Stream& stream : *streams) all += stream.bytes.size();
  RK_ASSERT_OK(Take((*streams)[0]));
  RK_ASSERT_OK(Take((*streams)[1]));
  const std::string first = (*streams)[0].part.origin, second = (*streams)[1].part.origin;
  // An object store knows the first digits; and there are parts of others, and what is none.
  auto rest =
      Parts("job:1", "",
            {first, second.substr(sizeof("sha256:") - 1, v1::kCopyLinkDigits), store_->Find("job:1")->digest,
             restore::OriginOfPart("sha256:other", "", 900), "", "sha256:"});
  RK_ASSERT_OK(rest);
  EXPECT_EQ(rest->front().part.base, second);
  size_t again = 0;
  for (const Stream& stream : *rest) {
    again += stream.bytes.size();
    RK_ASSERT_OK(Take(stream));
  }
  EXPECT_LT(again + (2u << 20), all);
  first_.ExpectIn(*other_, "job:1");
}

TEST_F(ImagePartsTest, WhatIsAsInAnEarlierImageIsInNoPart) {
  TestImage third = first_;
  third.objects[kObject][0].replace(100 * kPageSize, 500 * kPageSize, MakePages(500, 21));
  third.objects[kObject][0].replace(750 * kPageSize, kPageSize, MakePages(1, 22));
  third.objects["mem/3"][0] = MakePages(700, 23);
  RK_ASSERT_OK(third.Commit(*store_, "job:3"));
  auto whole = Sent("job:1");
  RK_ASSERT_OK(Receive(*whole));
  auto streams = Parts("job:3", "job:1");
  RK_ASSERT_OK(streams);
  ASSERT_GE(streams->size(), 3u);
  EXPECT_EQ(streams->front().part.base, store_->Find("job:1")->digest);
  size_t all = 0;
  for (const Stream& stream : *streams) all += stream.bytes.size();
  EXPECT_LT(all, 1250 * kPageSize);
  RK_ASSERT_OK(Take((*streams)[0]));
  // With another base, or none, it is another part.
  EXPECT_EQ(Parts("job:3", "", {(*streams)[0].part.origin})->front().part.base, "");
  auto rest = Parts("job:3", "job:1", {(*streams)[0].part.origin});
  RK_ASSERT_OK(rest);
  EXPECT_EQ(rest->front().part.base, (*streams)[0].part.origin);
  for (const Stream& stream : *rest) RK_ASSERT_OK(Take(stream));
  third.ExpectIn(*other_, "job:3");
}

TEST_F(ImagePartsTest, OfALittleImageThereAreNone) {
  RK_ASSERT_OK(Receive(*Sent("job:1")));
  auto streams = Parts("job:2", "job:1");
  RK_ASSERT_OK(streams);
  ASSERT_EQ(streams->size(), 1u);
  EXPECT_TRUE(streams->front().part.last);
  RK_ASSERT_OK(Take(streams->front()));
  second_.ExpectIn(*other_, "job:2");
}

TEST_F(ImagePartsTest, APartThatHasGoneIsMissed) {
  auto streams = Parts("job:1");
  RK_ASSERT_OK(streams);
  RK_ASSERT_OK(Take((*streams)[0]));
  RK_ASSERT_OK(other_->Remove(other_->List()->front().reference));
  const auto refused = Take((*streams)[1]).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_NE(refused.message().find("the first part of job:1"), std::string::npos) << refused;
}

// A few bytes of a stream can stand for much, and whoever writes into a bucket could send them.
TEST_F(ImageTransferTest, WhatIsNoMemoryOfTheJobTakesNoMoreThanItMay) {
  rest_budget_ = 1u << 20;
  TestImage blobs;
  blobs.blobs[v1::kJobManifestObject] = "the job";
  TestImage names = blobs, ranges = blobs;
  for (int i = 0; i < 6; ++i) blobs.blobs[absl::StrCat("zeros/", i)] = std::string(200'000, '\0');
  for (int i = 0; i < 1500; ++i) names.blobs[absl::StrCat(std::string(400, 'n'), i)] = "";
  const std::string zeros(kPageSize, '\0');
  for (uint64_t i = 0; i < 17'000; ++i) ranges.objects[kObject][2 * i * kPageSize] = zeros;
  for (const TestImage* image : {&blobs, &names, &ranges}) {
    RK_ASSERT_OK(image->Commit(*store_, "much:1"));
    auto bytes = Sent("much:1");
    RK_ASSERT_OK(bytes);
    const auto refused = Receive(*bytes).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_NE(refused.message().find("taking in much:1"), std::string::npos) << refused;
    EXPECT_TRUE(other_->List()->empty());
    RK_ASSERT_OK(store_->Remove("much:1"));
  }
}

TEST_F(ImageTransferTest, AnImageIsNotSentAgainstItself) {
  EXPECT_TRUE(absl::IsInvalidArgument(Sent("job:1", "job:1").status()));
  EXPECT_TRUE(absl::IsNotFound(Sent("nobody:1").status()));
}

}  // namespace
}  // namespace rekindle::store
