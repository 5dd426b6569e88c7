// A dump of which something was lost on its way.
#include "criu/image_completeness.h"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "criu/image_files.h"
#include "criu/images.pb.h"
#include "criu/test_images.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kProgram = 1, kFolder = 2, kLog = 3, kLibrary = 4;

std::string MakeCore(uint32_t state) {
  pb::Core core;
  core.mutable_task()->set_state(state);
  return MakeImage(0x55053847, {core.SerializeAsString()});
}

std::string MakeMmOf(uint32_t program, uint32_t library) {
  Vma area = AnonymousArea(0x1000, 0x1000);
  area.status = 1u << 0 | 1u << 6;
  area.shmid = library;
  std::string mm = MakeMm({area});
  pb::Mm message;
  message.ParseFromString(mm.substr(12));
  message.set_executable_id(program);
  return MakeImage(0x57492820, {message.SerializeAsString()});
}

std::string MakeFs() {
  pb::FileSystem fs;
  fs.set_working_directory_id(kFolder);
  fs.set_root_id(kFolder);
  return MakeImage(0x51403912, {fs.SerializeAsString()});
}

// Of a process with a second thread, its child, which has a log open, and another child that has died.
std::map<std::string, std::string> Dump() {
  std::map<std::string, std::string> files;
  files["inventory.img"] = MakeInventory();
  files["pstree.img"] =
      MakePstree({{10, 0, 10, 10, {10, 11}}, {20, 10, 10, 10, {20}}, {30, 10, 10, 10, {30}}});
  for (const char* thread : {"10", "11", "20"}) files[absl::StrCat("core-", thread, ".img")] = MakeCore(1);
  files["core-30.img"] = MakeCore(2);
  for (const char* pid : {"10", "20"}) {
    files[absl::StrCat("mm-", pid, ".img")] = MakeMmOf(kProgram, kLibrary);
    files[absl::StrCat("pagemap-", pid, ".img")] = SerializePagemap({});
    files[absl::StrCat("fs-", pid, ".img")] = MakeFs();
  }
  files["ids-10.img"] = MakeIds(1);
  files["ids-20.img"] = MakeIds(2);
  files["fdinfo-1.img"] = MakeDescriptors({});
  files["fdinfo-2.img"] = MakeDescriptors({{1, kLog}});
  files["files.img"] =
      MakeFiles({{kProgram, "/bin/job"}, {kFolder, "/"}, {kLog, "/tmp/log"}, {kLibrary, "/lib/libc.so.6"}});
  return files;
}

void ExpectMissed(const std::string& name) {
  auto files = Dump();
  ASSERT_EQ(files.erase(name), 1u) << name;
  const absl::Status status = CheckComplete(files);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << name << ": " << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("no ", name)));
}

TEST(ImageCompletenessTest, AllOfADump) {
  EXPECT_TRUE(CheckComplete(Dump()).ok()) << CheckComplete(Dump());
  auto files = Dump();
  files["ghost-file-1.img"] = "contents follow its record";
  EXPECT_TRUE(CheckComplete(files).ok()) << CheckComplete(files);
}

TEST(ImageCompletenessTest, WhatAProcessNeedsIsMissed) {
  for (const auto& [name, content] : Dump()) {
    // Without descriptors there is none.
    if (name != "fdinfo-1.img") ExpectMissed(name);
  }
}

TEST(ImageCompletenessTest, WithoutDescriptorsThereIsNoListOfThem) {
  auto files = Dump();
  files.erase("fdinfo-1.img");
  EXPECT_TRUE(CheckComplete(files).ok()) << CheckComplete(files);
}

TEST(ImageCompletenessTest, WhatWasCutShortIsDamaged) {
  for (const auto& [name, content] : Dump()) {
    if (name.starts_with("pagemap-")) continue;  // one that ends with its head has no pages
    auto files = Dump();
    files[name].resize(content.size() - 1);
    const absl::Status status = CheckComplete(files);
    EXPECT_TRUE(absl::IsDataLoss(status)) << name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

// Between two records nothing looks cut.
TEST(ImageCompletenessTest, FilesThatAreNamedAreMissed) {
  for (const uint32_t lost : {kProgram, kFolder, kLog, kLibrary}) {
    std::vector<TestFile> rest = {
        {kProgram, "/bin/job"}, {kFolder, "/"}, {kLog, "/tmp/log"}, {kLibrary, "/lib"}};
    std::erase_if(rest, [lost](const TestFile& file) { return file.id == lost; });
    auto files = Dump();
    files["files.img"] = MakeFiles(rest);
    const absl::Status status = CheckComplete(files);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("lacks file ", lost)));
  }
}

}  // namespace
}  // namespace rekindle::criu
