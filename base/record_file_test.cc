#include "base/record_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/api.pb.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "base/test_small_disk.h"

namespace rekindle {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Record = ::google::protobuf::Method;

Record Made(const std::string& name) {
  Record record;
  record.set_name(name);
  record.set_request_type_url("a \"quoted\" ünïcode\nline");
  record.set_request_streaming(true);
  record.add_options()->set_name("first");
  record.add_options()->set_name("second");
  return record;
}

class RecordFileTest : public ::testing::Test {
 protected:
  std::vector<std::string> Files() const { return ListDirectory(folder_.path()).value(); }
  absl::Status ReadText(const std::string& text) const {
    UniqueFd file = OpenFile(path_, O_WRONLY | O_CREAT | O_TRUNC).value();
    EXPECT_TRUE(WriteFully(file.get(), text.data(), text.size(), path_).ok());
    return ReadRecordFile<Record>(path_).status();
  }

  const TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk-record-").value();
  const std::string path_ = folder_.path() + "/record.json";
};

TEST_F(RecordFileTest, WhatIsWrittenIsRead) {
  for (const Record& record : {Record(), Made("one"), Made("two")}) {
    for (RecordOutlives outlives : {RecordOutlives::kPowerLoss, RecordOutlives::kProcess}) {
      ASSERT_TRUE(WriteRecordFile(path_, record, outlives).ok());
      auto read = ReadRecordFile<Record>(path_);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->SerializeAsString(), record.SerializeAsString());
      EXPECT_THAT(Files(), ElementsAre("record.json"));
    }
  }
}

TEST_F(RecordFileTest, TheFileIsForPeopleToReadAndForItsOwnerAlone) {
  ASSERT_TRUE(WriteRecordFile(path_, Made("one")).ok());
  EXPECT_THAT(*ReadFile(path_), HasSubstr("\n \"request_streaming\": true"));
  struct stat info;
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(RecordFileTest, NothingStaysOfWhatTheMessageHeld) {
  ASSERT_TRUE(WriteRecordFile(path_, Record()).ok());
  Record record = Made("old");
  ASSERT_TRUE(ReadRecordFile(path_, &record).ok());
  EXPECT_EQ(record.SerializeAsString(), "");
}

TEST_F(RecordFileTest, ARecordOfANewerVersionIsRefusedAndNotTakenForDamaged) {
  for (const char* text :
       {R"({"name": "n", "of_later": {"x": [1]}})", R"({"name": "n", "options": [{"name": "o", "more": 1}]})",
        R"({"name": "n", "syntax": "SYNTAX_OF_LATER"})"}) {
    const absl::Status status = ReadText(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + " was written by a newer version"));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
    EXPECT_EQ(*ReadFile(path_), text);
    Record record = Made("old");
    EXPECT_FALSE(ReadRecordFile(path_, &record).ok());
    EXPECT_EQ(record.name(), "n") << "what is known of it";
  }
  EXPECT_EQ(ReadText(R"({"name": "n", "syntax": "SYNTAX_PROTO3"})"), absl::OkStatus());
}

TEST_F(RecordFileTest, AnotherFormatIsOfANewerVersionWhereItIsGreater) {
  EXPECT_TRUE(CheckRecordFormat(path_, 3, 3).ok());
  const absl::Status newer = CheckRecordFormat(path_, 4, 3);
  EXPECT_EQ(newer.code(), absl::StatusCode::kFailedPrecondition) << newer;
  EXPECT_THAT(std::string(newer.message()), HasSubstr("it has format 4, this version knows 3"));
  EXPECT_EQ(CheckRecordFormat(path_, 0, 3).code(), absl::StatusCode::kDataLoss);
}

TEST_F(RecordFileTest, DamageIsNamedInOneLine) {
  for (const char* text : {"", "{", R"({"name": "x")", R"({"name": "x"}})", R"({"name": 1, "name")", "[]",
                           "\"x\"", R"({"request_streaming": "perhaps"})", "\x01\x02\x03"}) {
    const absl::Status status = ReadText(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + " holds no usable record: "));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
  EXPECT_THAT(std::string(ReadText("{\"name\": \"secret\"").message()), Not(HasSubstr("secret")));
}

TEST_F(RecordFileTest, EveryBeginningOfARecordIsDamaged) {
  ASSERT_TRUE(WriteRecordFile(path_, Made("one")).ok());
  const std::string whole = *ReadFile(path_);
  const size_t end = whole.rfind('}');
  for (size_t size = 0; size <= end; ++size) {
    EXPECT_EQ(ReadText(whole.substr(0, size)).code(), absl::StatusCode::kDataLoss) << size;
  }
}

TEST_F(RecordFileTest, AFileOrFolderThatIsMissingIsNamed) {
  absl::Status status = ReadRecordFile<Record>(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  const std::string nowhere = folder_.path() + "/gone/record.json";
  status = WriteRecordFile(nowhere, Made("one"));
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(nowhere));
  EXPECT_THAT(Files(), ElementsAre());
}

TEST_F(RecordFileTest, AFullDiskLeavesTheOldRecordAndNothingElse) {
  OnSmallDisk(folder_.path(), "64k", [&] {
    EXPECT_TRUE(WriteRecordFile(path_, Made("old")).ok());
    // Room for the beginning of the next one alone.
    EXPECT_TRUE(WriteFileAtomically(folder_.path() + "/filler", std::string(48 << 10, 'f')).ok());
    const absl::Status status = WriteRecordFile(path_, Made(std::string(32 << 10, 'n')));
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
    EXPECT_THAT(Files(), ElementsAre("filler", "record.json"));
    EXPECT_EQ(ReadRecordFile<Record>(path_).value().name(), "old");
  });
}

TEST_F(RecordFileTest, WhatAWriterThatDiedHasLeftGoes) {
  ASSERT_TRUE(WriteRecordFile(path_, Made("a")).ok());
  const std::vector<std::string> before = Files();
  const std::string abandoned = path_ + ".tmp-12-140723", other = path_ + ".tmp-of-mine";
  const std::string in_work = path_ + ".tmp-13-140723x";
  for (const std::string& path : {abandoned, other, in_work})
    ASSERT_TRUE(OpenFile(path, O_WRONLY | O_CREAT).ok());
  const auto writer = LockFile(in_work, LOCK_EX);
  ASSERT_TRUE(writer.ok()) << writer.status();
  RemoveAbandonedRecords(folder_.path());
  EXPECT_EQ(Files().size(), before.size() + 2);
  EXPECT_FALSE(PathExists(abandoned));
  EXPECT_TRUE(PathExists(in_work)) << "it is being written";
  EXPECT_TRUE(PathExists(other)) << "it is no record";
  EXPECT_TRUE(ReadRecordFile<Record>(path_).ok());
}

}  // namespace
}  // namespace rekindle
