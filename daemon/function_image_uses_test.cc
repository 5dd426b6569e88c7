#include "daemon/function_image_uses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "functions/function_record_file.h"

namespace rekindle::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FunctionImageUsesTest : public ::testing::Test {
 protected:
  void Deploy(const std::string& name, const std::string& dependency_image,
              const std::string& function_image = "") {
    functions::FunctionRecord record;
    record.spec.name = name;
    record.spec.handler = "app.handler";
    record.spec.code = "/srv/code";
    record.revision = 1;
    record.images.dependency_image = dependency_image;
    record.images.function_image = function_image;
    ASSERT_TRUE(functions::WriteFunctionRecord(Record(name), record).ok());
  }
  std::string Record(const std::string& name) {
    const std::string directory = functions::FunctionsDirectory(store_.path());
    EXPECT_TRUE(MakeDirectories(absl::StrCat(directory, "/", name), 0711).ok());
    return absl::StrCat(directory, "/", name, "/", functions::kRecordFile);
  }
  std::vector<std::string> ReasonsFor(const std::string& reference) {
    auto uses = FunctionImageUses::Of(store_.path());
    EXPECT_TRUE(uses.ok()) << uses.status();
    return uses.ok() ? uses->ReasonsFor(reference) : std::vector<std::string>();
  }

  TemporaryDirectory store_ = *TemporaryDirectory::Make("/tmp", "rk-image-uses.");
};

TEST_F(FunctionImageUsesTest, WithoutFunctionsNoneIsNeeded) {
  EXPECT_THAT(ReasonsFor("deps/python:numpy"), IsEmpty());
}

TEST_F(FunctionImageUsesTest, WhatTheirRecordsNameIsNeeded) {
  Deploy("a", "deps/python:numpy", "functions/a-1:r1");
  Deploy("b", "deps/python:numpy");
  Record("being-deployed");
  EXPECT_THAT(ReasonsFor("deps/python:numpy"),
              ElementsAre("function 'a' starts from it", "function 'b' starts from it"));
  EXPECT_THAT(ReasonsFor("functions/a-1:r1"), ElementsAre("function 'a' starts from it"));
  EXPECT_THAT(ReasonsFor("deps/python:torch"), IsEmpty());
}

TEST_F(FunctionImageUsesTest, OfARecordThatCanNotBeReadAnyImageMayBe) {
  ASSERT_TRUE(WriteFileAtomically(Record("damaged"), "{", 0600).ok());
  EXPECT_THAT(ReasonsFor("deps/python:torch"),
              ElementsAre("function 'damaged' may start from it: its record can't be read (rekindle fn ls)"));
  EXPECT_THAT(ReasonsFor("functions/b-2:r7").size(), 1u);
  EXPECT_THAT(ReasonsFor("web:v1"), IsEmpty());
}

}  // namespace
}  // namespace rekindle::daemon
