#include "daemon/supervised_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "base/message_text.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SupervisedRecordTest : public ::testing::Test {
 protected:
  static v1::SupervisedJobRecord Made(const std::string& name) {
    v1::SupervisedJobRecord record;
    record.set_name(name);
    record.add_argv("/bin/train");
    record.add_environment("NOT_UTF8=\xff\xfe");
    record.set_run_seconds(0.1);
    return record;
  }
  std::vector<std::string> Names() {
    damaged_.clear();
    std::vector<std::string> names;
    const std::vector<std::string> listed = ListSupervisedRecords(directory_).value();
    for (const std::string& name : listed) {
      absl::StatusOr<v1::SupervisedJobRecord> record = ReadSupervisedRecord(directory_, name);
      if (record.ok()) {
        names.push_back(name);
      } else {
        damaged_.emplace_back(record.status().message());
      }
    }
    return names;
  }

  const TemporaryDirectory folder_ =
      TemporaryDirectory::Make(testing::TempDir(), "rekindle_supervised_test.").value();
  const std::string directory_ = SupervisedDirectory(folder_.path());
  std::vector<std::string> damaged_;
};

TEST_F(SupervisedRecordTest, TwoJobsOfOneOwnerThatRunCallTheirImagesDifferently) {
  v1::SupervisedJobRecord one = Made("one"), two = Made("two");
  one.mutable_policy()->set_image_name("images");
  two.mutable_policy()->set_image_name("images");
  ASSERT_TRUE(WriteSupervisedRecord(directory_, one).ok());
  EXPECT_TRUE(CheckImagesNameIsFree(directory_, one).ok()) << "it is its own";
  const absl::Status refused = CheckImagesNameIsFree(directory_, two);
  EXPECT_TRUE(absl::IsAlreadyExists(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("job 'one', which has not ended"));
  EXPECT_FALSE(CheckImagesNameIsFree(directory_, Made("images")).ok()) << "as its own name gives it";
  EXPECT_TRUE(CheckImagesNameIsFree(directory_, Made("two")).ok());
  two.set_uid(1001);
  EXPECT_TRUE(CheckImagesNameIsFree(directory_, two).ok());
  two.set_uid(0);
  one.set_ended(true);
  ASSERT_TRUE(WriteSupervisedRecord(directory_, one).ok());
  EXPECT_TRUE(CheckImagesNameIsFree(directory_, two).ok());
}

TEST_F(SupervisedRecordTest, NumbersGrowFromStartToStart) {
  store::ImageInfo image;
  v1::SupervisedJobRecord record;
  v1::RestartPoint first;
  GoOnFromStart(image, &record, &first);
  EXPECT_EQ(record.first_submitted_unix_ns(), 0) << "it was not supervised";
  EXPECT_EQ(first.number(), 1u);
  EXPECT_EQ(record.last_number(), uint64_t{1} << 32);
  image.labels = {{v1::kSupervisedLabel, "77"}, {v1::kSupervisedNumberLabel, "9"}};
  GoOnFromStart(image, &record, &first);
  EXPECT_EQ(record.first_submitted_unix_ns(), 77);
  EXPECT_EQ(first.number(), 9u);
  EXPECT_EQ(record.last_number(), uint64_t{1} << 32);
  EXPECT_EQ(NumbersBeforeStart(record), uint64_t{1} << 32);
  EXPECT_EQ(record.ancestors(), "77:9");
  image.labels = {{v1::kSupervisedLabel, "99"},
                  {v1::kSupervisedFirstLabel, "77"},
                  {v1::kSupervisedNumberLabel, std::to_string((uint64_t{4} << 32) + 7)}};
  GoOnFromStart(image, &record, &first);
  EXPECT_EQ(record.first_submitted_unix_ns(), 77);
  EXPECT_EQ(first.number(), (uint64_t{4} << 32) + 7);
  EXPECT_EQ(record.last_number(), uint64_t{5} << 32);
  EXPECT_EQ(record.ancestors(), "99:17179869191") << "where it came from the image does not say";
  image.labels[v1::kSupervisedAncestorsLabel] = "88:12,77:9";
  GoOnFromStart(image, &record, &first);
  EXPECT_EQ(record.ancestors(), "99:17179869191,88:12,77:9");
  EXPECT_EQ(record.sound(), "");
  image.labels[v1::kSupervisedSoundLabel] = "99:17179869189-17179869190,77:1-8,forged";
  GoOnFromStart(image, &record, &first);
  EXPECT_EQ(record.sound(), "99:17179869189-17179869190,77:1-8");
  image.labels[v1::kSupervisedNumberLabel] = "18446744073709551615";
  GoOnFromStart(image, &record, &first);
  EXPECT_EQ(record.last_number(), uint64_t{1} << 32) << "no job comes to that";
  EXPECT_EQ(record.ancestors(), "");
  EXPECT_EQ(record.sound(), "");
}

TEST_F(SupervisedRecordTest, WhatIsWrittenIsReadUntilItIsRemoved) {
  EXPECT_THAT(Names(), IsEmpty());
  for (const char* name : {"one", "two"}) ASSERT_TRUE(WriteSupervisedRecord(directory_, Made(name)).ok());
  EXPECT_THAT(Names(), ElementsAre("one", "two"));
  const v1::SupervisedJobRecord read = *ReadSupervisedRecord(directory_, "one");
  EXPECT_EQ(read.environment(0), "NOT_UTF8=\xff\xfe");
  EXPECT_EQ(read.run_seconds(), 0.1);
  ASSERT_TRUE(RemoveSupervisedRecord(directory_, "one").ok());
  EXPECT_THAT(Names(), ElementsAre("two"));
  EXPECT_THAT(damaged_, IsEmpty());
}

TEST_F(SupervisedRecordTest, AnErrorMayQuoteAPathThatIsNoText) {
  v1::SupervisedJobRecord record = Made("one");
  record.set_last_error("/data/caf\xe9: it is gone");
  record.add_deaths("whole");
  record.add_deaths("caf\xe9");
  record.add_points()->set_image("\xe9");
  EXPECT_FALSE(IsText(record));
  ASSERT_TRUE(WriteSupervisedRecord(directory_, record).ok());
  const absl::StatusOr<v1::SupervisedJobRecord> read = ReadSupervisedRecord(directory_, "one");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(IsText(*read));
  EXPECT_EQ(read->last_error(), "/data/caf?: it is gone");
  EXPECT_THAT(read->deaths(), ElementsAre("whole", "caf?"));
  EXPECT_EQ(read->points(0).image(), "?");
  EXPECT_EQ(read->environment(0), "NOT_UTF8=\xff\xfe");
}

TEST_F(SupervisedRecordTest, WhatWasKnownOfOtherWaysIsInherited) {
  const auto of_start = [](const char* start, const char* number, const char* ancestors) {
    store::ImageInfo image;
    image.labels = {{v1::kSupervisedLabel, start}, {v1::kSupervisedNumberLabel, number}};
    if (*ancestors != '\0') image.labels[v1::kSupervisedAncestorsLabel] = ancestors;
    return image;
  };
  const auto started = [](const store::ImageInfo& from, const std::vector<store::ImageInfo>& known) {
    v1::SupervisedJobRecord record;
    v1::RestartPoint first;
    GoOnFromStart(from, &record, &first);
    NoteOtherWays(from, known, &record);
    return record;
  };
  // Back to an image: what came after it is another way, and what it has come from is none.
  store::ImageInfo back = of_start("77", "9", "66:3");
  EXPECT_EQ(started(back, {back, of_start("77", "8", "66:3"), of_start("66", "3", "")}).seen(), "");
  EXPECT_EQ(started(back, {back, of_start("77", "12", "66:3"), of_start("77", "11", "66:3")}).seen(),
            "77:12");
  // With what that way has come from, and has seen itself.
  store::ImageInfo other = of_start("88", "4294967299", "77:10,66:3");
  other.labels[v1::kSupervisedSeenLabel] = "55:2,77:12";
  EXPECT_EQ(started(back, {other, store::ImageInfo()}).seen(), "88:4294967299,77:12,55:2");
  // From start to start, and what is the past by then is no other way.
  back.labels[v1::kSupervisedSeenLabel] = "80:5,77:9";
  EXPECT_EQ(started(back, {}).seen(), "80:5");
  EXPECT_EQ(started(back, {of_start("80", "7", "77:5,66:3")}).seen(), "80:7");
}

TEST_F(SupervisedRecordTest, ALifeThatWasLeftIsKnownUntilAnotherOneBegins) {
  v1::SupervisedJobRecord record = Made("one");
  record.set_pid(7);
  record.set_start_ticks(1000);
  record.set_boot_id("boot");
  ASSERT_TRUE(WriteSupervisedRecord(directory_, record).ok());
  EXPECT_FALSE(IsLeftLife(directory_, record));
  ASSERT_TRUE(WriteLeftLife(directory_, record).ok());
  EXPECT_TRUE(IsLeftLife(directory_, record));
  EXPECT_THAT(Names(), ElementsAre("one"));
  v1::SupervisedJobRecord restored = record;  // with its PID
  restored.set_start_ticks(1001);
  EXPECT_FALSE(IsLeftLife(directory_, restored));
  ASSERT_TRUE(RemoveSupervisedRecord(directory_, "one").ok());
  EXPECT_FALSE(IsLeftLife(directory_, record));
}

TEST_F(SupervisedRecordTest, AnImageIsNamedByItsDigest) {
  v1::RestartPoint point;
  point.set_image("grp/0:step1");
  EXPECT_EQ(ExactNameOf(point), "grp/0:step1");
  point.set_digest("sha256:12");
  EXPECT_EQ(ExactNameOf(point), "grp/0@sha256:12");
}

TEST_F(SupervisedRecordTest, DamagedOnesAreNamedAndHarmNoOther) {
  for (const char* name : {"cut", "good", "other"})
    ASSERT_TRUE(WriteSupervisedRecord(directory_, Made(name)).ok());
  const std::string cut = directory_ + "/cut.json", renamed = directory_ + "/renamed.json",
                    newer = directory_ + "/newer.json";
  ASSERT_TRUE(WriteFileAtomically(cut, ReadFile(cut)->substr(0, 40)).ok());
  ASSERT_TRUE(WriteFileAtomically(renamed, *ReadFile(directory_ + "/other.json")).ok());
  ASSERT_TRUE(WriteFileAtomically(newer, R"({"format": 2, "name": "newer", "argv": ["eA=="]})").ok());
  EXPECT_THAT(Names(), ElementsAre("good", "other"));
  EXPECT_THAT(damaged_, ElementsAre(HasSubstr(cut), HasSubstr(newer), HasSubstr(renamed)));
  EXPECT_TRUE(absl::IsDataLoss(ReadSupervisedRecord(directory_, "cut").status()));
}

// A rolled-back daemon must neither do something else than was asked for, nor write that it was.
TEST_F(SupervisedRecordTest, OneOfANewerVersionIsNeitherUsedNorTakenForDamaged) {
  const std::string path = directory_ + "/newer.json";
  ASSERT_TRUE(MakeSupervisedDirectory(directory_).ok());
  for (
      const char* text :
      {R"({"format": 2, "name": "newer", "argv": ["eA=="]})",
       R"({"format": 2, "title": "newer", "words": ["eA=="]})",
       R"({"format": 1, "name": "newer", "argv": ["eA=="], "keep_for_ever": true})",
       R"({"format": 1, "name": "newer", "argv": ["eA=="], "policy": {"rollback": {"mode": "OF_LATER"}}})"}) {
    ASSERT_TRUE(WriteFileAtomically(path, text).ok());
    const absl::Status read = ReadSupervisedRecord(directory_, "newer").status();
    EXPECT_TRUE(absl::IsFailedPrecondition(read)) << text << ": " << read;
    EXPECT_THAT(std::string(read.message()), HasSubstr("use a newer Rekindle"));
    if (absl::string_view(text).substr(0, 12) == R"({"format": 2)") {
      EXPECT_THAT(std::string(read.message()), HasSubstr("it has format 2, this version knows 1"));
    }
  }
}

}  // namespace
}  // namespace rekindle::daemon
