#include "daemon/copy_notes.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rekindle/v1/copy_origins.h"

namespace rekindle::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1'800'000'000 * kSecond;
constexpr uid_t kCopier = 1000, kOtherCopier = 1001;

v1::NoteCopyRequest Request(const std::string& place = "/mnt/a") {
  v1::NoteCopyRequest request;
  request.set_name("train");
  request.set_place(place);
  return request;
}

v1::NoteCopyRequest Copied(const std::string& tag) {
  v1::NoteCopyRequest request = Request();
  request.mutable_copied()->set_reference("train:" + tag);
  request.mutable_copied()->set_digest("sha256:" + tag);
  request.mutable_copied()->set_created_unix_ns(kNow);
  return request;
}

v1::NoteCopyRequest Failed(const std::string& why) {
  v1::NoteCopyRequest request = Request();
  request.set_error(why);
  return request;
}

v1::NoteCopyRequest Ended() {
  v1::NoteCopyRequest request = Request();
  request.set_ended(true);
  return request;
}

class CopyNotesTest : public ::testing::Test {
 protected:
  CopyNotesTest() : notes_(directory_.path()) {}

  v1::CopyState Only(int64_t now = kNow) {
    const std::vector<v1::CopyState> all = notes_.List(now);
    EXPECT_THAT(all, SizeIs(1));
    return all.empty() ? v1::CopyState() : all[0];
  }

  TemporaryDirectory directory_ = *TemporaryDirectory::Make(testing::TempDir(), "rekindle_copies_test.");
  CopyNotes notes_;
};

TEST_F(CopyNotesTest, TheLastSuccessAndTheLastErrorStay) {
  ASSERT_TRUE(notes_.Note(kCopier, Request(), kNow).ok());
  EXPECT_EQ(Only().copied_unix_ns(), 0);
  ASSERT_TRUE(notes_.Note(kCopier, Copied("1"), kNow + 1).ok());
  ASSERT_TRUE(notes_.Note(kCopier, Failed("it is gone"), kNow + 2).ok());
  ASSERT_TRUE(notes_.Note(kCopier, Failed("it is still gone"), kNow + 3).ok());
  v1::CopyState state = Only();
  EXPECT_EQ(state.image(), "train:1");
  EXPECT_EQ(state.copied_unix_ns(), kNow + 1);
  EXPECT_EQ(state.last_error(), "it is still gone");
  EXPECT_EQ(state.failing_since_unix_ns(), kNow + 2);
  EXPECT_EQ(state.owner_uid(), kCopier);
  ASSERT_TRUE(notes_.Note(kCopier, Copied("2"), kNow + 4).ok());
  state = Only();
  EXPECT_EQ(state.digest(), "sha256:2");
  EXPECT_EQ(state.last_error(), "");
  EXPECT_EQ(state.failing_since_unix_ns(), 0);
}

TEST_F(CopyNotesTest, WhatIsThereIsRememberedForWhoeverCopiesNext) {
  v1::NoteCopyResponse before;
  ASSERT_TRUE(notes_.Note(kCopier, Request(), kNow, &before).ok());
  EXPECT_THAT(before.there().origins(), IsEmpty());
  v1::NoteCopyRequest copied = Copied("3");
  for (const char* origin : {"sha256:1", "sha256:2", "sha256:3"}) copied.mutable_there()->add_origins(origin);
  ASSERT_TRUE(notes_.Note(kCopier, copied, kNow).ok());
  ASSERT_TRUE(notes_.Note(kCopier, Failed("it is gone"), kNow + 1).ok());
  ASSERT_TRUE(notes_.Note(kCopier, Ended(), kNow + 2).ok());
  // Who only asks has not tried yet: what failed last still holds.
  ASSERT_TRUE(notes_.Note(kCopier, Request(), kNow + 3, &before).ok());
  EXPECT_THAT(before.there().origins(), ElementsAre("sha256:1", "sha256:2", "sha256:3"));
  EXPECT_EQ(Only().last_error(), "it is gone");
  EXPECT_FALSE(Only().ended());
  v1::NoteCopyRequest none = Request();
  none.mutable_there();
  ASSERT_TRUE(notes_.Note(kCopier, none, kNow + 4).ok());
  EXPECT_THAT(Only().there(), IsEmpty());
  EXPECT_EQ(Only().last_error(), "");
  v1::NoteCopyRequest many = Request();
  for (int i = 0; i < 500; ++i) many.mutable_there()->add_origins(absl::StrCat(i));
  ASSERT_TRUE(notes_.Note(kCopier, many, kNow + 5).ok());
  EXPECT_THAT(Only().there(), SizeIs(v1::kMostCopyOrigins));
  EXPECT_EQ(*Only().there().rbegin(), "499");
}

TEST_F(CopyNotesTest, WhatWasBegunStaysKnownToWhoeverCopiesBesideIt) {
  v1::NoteCopyRequest begins = Request();
  begins.set_begins("sha256:2");
  ASSERT_TRUE(notes_.Note(kCopier, begins, kNow).ok());
  // Another one has looked before that was there.
  v1::NoteCopyRequest of_other = Copied("1");
  of_other.mutable_there()->add_origins("sha256:1");
  ASSERT_TRUE(notes_.Note(kCopier, of_other, kNow + 1).ok());
  v1::NoteCopyResponse before;
  ASSERT_TRUE(notes_.Note(kCopier, Request(), kNow + 2, &before).ok());
  EXPECT_THAT(before.there().origins(), ElementsAre("sha256:1"));
  EXPECT_THAT(before.begun().origins(), ElementsAre("sha256:2"));
  for (int i = 0; i < 100; ++i) {
    begins.set_begins(absl::StrCat(i % 50));
    ASSERT_TRUE(notes_.Note(kCopier, begins, kNow + 3).ok());
  }
  EXPECT_THAT(Only().begun(), SizeIs(v1::kMostBegunCopies));
  EXPECT_EQ(*Only().begun().rbegin(), "49");
  EXPECT_THAT(Only().there(), ElementsAre("sha256:1"));
}

TEST_F(CopyNotesTest, EachUserAndPlaceHasItsOwn) {
  ASSERT_TRUE(notes_.Note(kCopier, Copied("1"), kNow).ok());
  ASSERT_TRUE(notes_.Note(kOtherCopier, Copied("2"), kNow).ok());
  ASSERT_TRUE(notes_.Note(kOtherCopier, Request("/mnt/b"), kNow).ok());
  EXPECT_THAT(notes_.List(kNow), SizeIs(3));
}

TEST_F(CopyNotesTest, WhatEndedIsForgottenADayLater) {
  ASSERT_TRUE(notes_.Note(kCopier, Ended(), kNow).ok());
  EXPECT_THAT(notes_.List(kNow), IsEmpty());  // it had never begun
  ASSERT_TRUE(notes_.Note(kCopier, Copied("1"), kNow).ok());
  ASSERT_TRUE(notes_.Note(kCopier, Ended(), kNow).ok());
  EXPECT_TRUE(Only().ended());
  EXPECT_EQ(Only().image(), "train:1");
  EXPECT_THAT(notes_.List(kNow + 25 * 3600 * kSecond), IsEmpty());
  ASSERT_TRUE(notes_.Note(kCopier, Request(), kNow).ok());
  EXPECT_FALSE(Only().ended());
}

TEST_F(CopyNotesTest, NobodyFillsTheStoreWithThem) {
  int taken = 0;
  absl::Status last;
  for (int i = 0; i < 200 && last.ok(); ++i) {
    last = notes_.Note(kCopier, Request(absl::StrCat("/mnt/", i)), kNow);
    if (last.ok()) ++taken;
  }
  EXPECT_EQ(taken, 100);
  EXPECT_TRUE(absl::IsResourceExhausted(last)) << last;
  EXPECT_TRUE(notes_.Note(kOtherCopier, Request(), kNow).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(notes_.Note(kOtherCopier, Request(std::string(5000, 'x')), kNow)));
  v1::NoteCopyRequest hostile = Request();
  hostile.set_name("../x");
  EXPECT_TRUE(absl::IsInvalidArgument(notes_.Note(kOtherCopier, hostile, kNow)));
  ASSERT_TRUE(notes_.Note(kOtherCopier, Failed(std::string(100'000, 'x')), kNow).ok());
  for (const v1::CopyState& state : notes_.List(kNow)) EXPECT_LE(state.last_error().size(), 2000u);
}

TEST_F(CopyNotesTest, WhatIsKeptOfAnImageIsBounded) {
  v1::NoteCopyRequest request = Copied("1");
  request.mutable_copied()->set_digest(std::string(1 << 20, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(notes_.Note(kCopier, request, kNow)));
  request = Copied("1");
  request.mutable_copied()->set_reference(std::string(1 << 20, 'x') + ":1");
  EXPECT_TRUE(absl::IsInvalidArgument(notes_.Note(kCopier, request, kNow)));
  EXPECT_THAT(notes_.List(kNow), IsEmpty());
}

TEST_F(CopyNotesTest, WhatEndedFirstMakesRoom) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(notes_.Note(kCopier, Request(absl::StrCat("/mnt/", i)), kNow + i).ok());
  }
  for (const int i : {7, 3}) {
    v1::NoteCopyRequest ended = Request(absl::StrCat("/mnt/", i));
    ended.set_ended(true);
    ASSERT_TRUE(notes_.Note(kCopier, ended, kNow + 1000 - i).ok());
  }
  ASSERT_TRUE(notes_.Note(kCopier, Request("/mnt/new"), kNow + 2000).ok());
  std::vector<std::string> places;
  for (const v1::CopyState& state : notes_.List(kNow + 2000)) places.push_back(state.place());
  EXPECT_THAT(places, SizeIs(100));
  EXPECT_THAT(places, ::testing::Contains("/mnt/new"));
  EXPECT_THAT(places, ::testing::Contains("/mnt/3"));
  EXPECT_THAT(places, ::testing::Not(::testing::Contains("/mnt/7")));
}

TEST_F(CopyNotesTest, NobodysManyHideThoseOfOthers) {
  ASSERT_TRUE(notes_.Note(1, Request(), kNow).ok());
  ASSERT_TRUE(notes_.Note(kOtherCopier, Copied("2"), kNow).ok());
  const std::string folder = directory_.path() + "/copies";
  std::string content;
  const std::vector<std::string> files = *ListDirectory(folder);
  for (const std::string& file : files) {
    if (file.starts_with("1-")) content = *ReadFile(absl::StrCat(folder, "/", file));
  }
  for (int i = 0; i < 2100; ++i) {
    std::ofstream(absl::StrCat(folder, "/1-", absl::Hex(i, absl::kZeroPad16), ".json")) << content;
  }
  const std::vector<v1::CopyState> all = notes_.List(kNow);
  EXPECT_THAT(all, SizeIs(2000));
  EXPECT_EQ(std::count_if(all.begin(), all.end(),
                          [](const v1::CopyState& state) { return state.owner_uid() == kOtherCopier; }),
            1);
}

TEST_F(CopyNotesTest, DamagedNotesAreWrittenAnew) {
  ASSERT_TRUE(notes_.Note(kCopier, Copied("1"), kNow).ok());
  const std::string folder = directory_.path() + "/copies";
  const std::vector<std::string> files = *ListDirectory(folder);
  for (const std::string& file : files) {
    if (file == ".lock") continue;
    ASSERT_TRUE(WriteFileAtomically(folder + "/" + file, "{").ok());
  }
  EXPECT_THAT(notes_.List(kNow), IsEmpty());
  ASSERT_TRUE(notes_.Note(kCopier, Copied("2"), kNow).ok());
  EXPECT_EQ(Only().image(), "train:2");
}

class JudgeCopyTest : public ::testing::Test {
 protected:
  JudgeCopyTest() {
    state_.set_name("train");
    state_.set_place("/mnt/a");
    state_.set_owner_uid(kCopier);
  }

  // The last one that was committed is added last; taken so many seconds ago.
  void AddImage(const std::string& tag, int64_t seconds_ago, uid_t owner = kCopier) {
    store::ImageInfo image;
    image.reference = absl::StrCat("train:", tag);
    image.digest = absl::StrCat("sha256:", tag);
    image.created_unix_ns = kNow - seconds_ago * kSecond;
    image.owner = owner;
    images_.insert(images_.begin(), image);
  }
  void SetCopied(const std::string& tag, int64_t seconds_ago) {
    state_.set_digest("sha256:" + tag);
    state_.set_taken_unix_ns(kNow - seconds_ago * kSecond);
  }
  // For how many seconds a newer one has waited; 0: there is none.
  int64_t Behind(bool of_all = false) {
    state_.clear_trouble();
    JudgeCopy(images_, of_all, period_, kNow, &state_);
    return state_.behind_since_unix_ns() == 0 ? 0 : (kNow - state_.behind_since_unix_ns()) / kSecond;
  }

  v1::CopyState state_;
  absl::Duration period_;
  std::vector<store::ImageInfo> images_;
};

TEST_F(JudgeCopyTest, BehindIsWhoeverHasNotTheNewest) {
  EXPECT_EQ(Behind(), 0);
  AddImage("1", 300);
  EXPECT_EQ(Behind(), 300);
  SetCopied("1", 300);
  EXPECT_EQ(Behind(), 0);
  AddImage("2", 200);
  AddImage("3", 100);
  EXPECT_EQ(Behind(), 200);
  SetCopied("3", 100);
  EXPECT_EQ(Behind(), 0);
  AddImage("of-bob", 50, kOtherCopier);
  EXPECT_EQ(Behind(), 0);
  EXPECT_EQ(Behind(/*of_all=*/true), 50);
}

TEST_F(JudgeCopyTest, TheOneThatIsThereMayBeGoneHere) {
  AddImage("1", 300);
  AddImage("3", 100);
  SetCopied("2", 200);
  EXPECT_EQ(Behind(), 100);
  images_.erase(images_.begin());
  EXPECT_EQ(Behind(), 0);
}

TEST_F(JudgeCopyTest, TroubleIsAnErrorOrALongWait) {
  AddImage("1", 300);
  Behind();
  EXPECT_EQ(state_.trouble(), "");
  state_.set_last_error("it is gone");
  state_.set_failing_since_unix_ns(kNow - 65 * kSecond);
  Behind();
  EXPECT_THAT(state_.trouble(),
              HasSubstr("images of train are not copied to /mnt/a since 1 min 5 s: it is gone"));
  state_.clear_last_error();
  AddImage("2", 200);
  SetCopied("1", 300);
  Behind();
  EXPECT_EQ(state_.trouble(), "");
  images_.clear();
  AddImage("1", 3000);
  AddImage("2", 1200);
  Behind();
  EXPECT_THAT(state_.trouble(), HasSubstr("one has waited for 20 min"));
  // One that takes longer on its way than it is until the next one is overtaken by that.
  period_ = absl::Minutes(15);
  Behind();
  EXPECT_EQ(state_.trouble(), "");
  period_ = absl::Minutes(9);
  Behind();
  EXPECT_THAT(state_.trouble(), HasSubstr("one has waited for 20 min"));
  state_.set_ended(true);
  Behind();
  EXPECT_EQ(state_.trouble(), "");
}

}  // namespace
}  // namespace rekindle::daemon
