#include "criu/terminal_files.h"

#include <fcntl.h>

#include "criu/image_files.h"
#include "criu/images.pb.h"
#include "criu/test_images.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr uint32_t kTerminalsMagic = 0x59453036, kFileTableMagic = 0x56303138, kDescriptorsMagic = 0x56213732;
constexpr uint32_t kPty = 1, kExternal = 5, kTtyFile = 11;

std::string Terminal(uint32_t id, uint32_t type) {
  pb::TtyInfo terminal;
  terminal.set_id(id);
  terminal.set_type(type);
  return terminal.SerializeAsString();
}

std::string TerminalFile(uint32_t id, uint32_t terminal) {
  pb::FileEntry entry;
  entry.set_type(kTtyFile);
  entry.set_id(id);
  entry.mutable_terminal()->set_terminal_id(terminal);
  return entry.SerializeAsString();
}

std::string OpenAs(uint32_t descriptor, uint32_t file, uint32_t type) {
  pb::Descriptor entry;
  entry.set_fd(descriptor);
  entry.set_file_id(file);
  entry.set_type(type);
  return entry.SerializeAsString();
}

TEST(TerminalFilesTest, OutsideTerminalsBecomeAnInputAndAnOutput) {
  const std::map<std::string, std::string> images = {
      {"tty-info.img", MakeImage(kTerminalsMagic, {Terminal(70, kExternal), Terminal(71, kPty)})},
      {"files.img", MakeImage(kFileTableMagic, {TerminalFile(3, 70), TerminalFile(4, 71)})},
      {"fdinfo-2.img", MakeImage(kDescriptorsMagic,
                                 {OpenAs(0, 3, kTtyFile), OpenAs(1, 3, kTtyFile), OpenAs(9, 4, kTtyFile)})}};
  auto changed = WithoutTerminals(images);
  ASSERT_TRUE(changed.ok()) << changed.status();
  auto files = ParseRegularFiles(changed->at("files.img"));
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->size(), 2u);
  EXPECT_EQ((*files)[0].path, std::string("/") + kInsteadOfTerminalOutput);
  EXPECT_TRUE((*files)[0].append);
  EXPECT_EQ((*files)[1].path, std::string("/") + kInsteadOfTerminalInput);
  EXPECT_FALSE((*files)[1].written);
  EXPECT_EQ(changed->at("tty-info.img"), MakeImage(kTerminalsMagic, {Terminal(71, kPty)}));
  auto descriptors = ParseRegularDescriptors(changed->at("fdinfo-2.img"));
  ASSERT_TRUE(descriptors.ok()) << descriptors.status();
  EXPECT_THAT(*descriptors, ElementsAre(Pair(0, (*files)[1].id), Pair(1, 3)));
}

TEST(TerminalFilesTest, NothingElseChanges) {
  std::map<std::string, std::string> images = {
      {"tty-info.img", MakeImage(kTerminalsMagic, {Terminal(71, kPty)})},
      {"files.img", MakeImage(kFileTableMagic, {TerminalFile(4, 71)})}};
  EXPECT_THAT(WithoutTerminals(images).value(), IsEmpty());
  images.erase("tty-info.img");
  EXPECT_THAT(WithoutTerminals(images).value(), IsEmpty());
  images["tty-info.img"] = "no image";
  EXPECT_EQ(WithoutTerminals(images).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace rekindle::criu
