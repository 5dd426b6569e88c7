#include "base/file_beginning.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <string>

#include "base/file.h"

namespace rekindle {
namespace {

class FileBeginningTest : public testing::Test {
 protected:
  absl::StatusOr<uint64_t> Of(const std::string& content, uint64_t bytes) {
    const std::string path = folder_.path() + "/file";
    EXPECT_TRUE(WriteFileAtomically(path, content).ok());
    const UniqueFd fd = OpenFile(path, O_RDONLY).value();
    return FileBeginning(fd.get(), bytes);
  }

  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_file_beginning_test.").value();
};

TEST_F(FileBeginningTest, WhatIsAppendedDoesNotChangeIt) {
  for (const size_t bytes : {0u, 10u, 100'000u, 131'072u, 131'073u, 1'000'000u}) {
    const std::string content(bytes, 'x');
    ASSERT_TRUE(Of(content, bytes).ok());
    EXPECT_NE(*Of(content, bytes), 0u);
    EXPECT_EQ(*Of(content, bytes), *Of(content + "more", bytes)) << bytes;
  }
}

TEST_F(FileBeginningTest, TheEndingIsThatOfTheLastBytes) {
  const std::string path = folder_.path() + "/file";
  const auto ending = [&](const std::string& content, uint64_t bytes) {
    EXPECT_TRUE(WriteFileAtomically(path, content).ok());
    return FileEnding(OpenFile(path, O_RDONLY).value().get(), bytes);
  };
  for (const size_t bytes : {1u, 4095u, 4096u, 100'000u}) {
    std::string content(bytes, 'x');
    const uint64_t before = ending(content, bytes).value();
    EXPECT_NE(before, 0u);
    EXPECT_EQ(before, ending(content + "more", bytes).value()) << bytes;
    content[bytes - 1] = 'y';
    EXPECT_NE(before, ending(content, bytes).value()) << bytes;
    EXPECT_TRUE(absl::IsOutOfRange(ending(content, bytes + 1).status()));
  }
  EXPECT_EQ(ending("a" + std::string(10'000, 'x'), 10'001).value(),
            ending("b" + std::string(10'000, 'x'), 10'001).value());
}

TEST_F(FileBeginningTest, WhatIsInsertedDoes) {
  std::string script;
  for (int line = 0; script.size() < 1'000'000; ++line) script += "echo " + std::to_string(line) + "\n";
  for (const size_t bytes : {size_t{100}, size_t{100'000}, script.size()}) {
    const std::string content = script.substr(0, bytes);
    for (const size_t at : {size_t{0}, bytes / 2, bytes - 1}) {
      std::string edited = content;
      edited.insert(at, "exit\n");
      EXPECT_NE(*Of(content, bytes), *Of(edited, bytes)) << bytes << " at " << at;
    }
  }
}

TEST_F(FileBeginningTest, TheMiddleIsWhatLiesBetween) {
  const std::string path = folder_.path() + "/file";
  const auto middle = [&](const std::string& content) {
    EXPECT_TRUE(WriteFileAtomically(path, content).ok());
    return FileMiddle(OpenFile(path, O_RDONLY).value().get(), content.size()).value();
  };
  for (const size_t bytes :
       {size_t{0}, size_t{131'072}, size_t{131'073}, size_t{140'000}, size_t{5'000'000}}) {
    std::string content(bytes, 'x');
    const uint64_t before = middle(content);
    EXPECT_NE(before, 0u);
    EXPECT_EQ(BeginningIsAll(bytes), bytes <= 131'072);
    if (bytes < 140'000) continue;
    content[65'536] = 'y';
    EXPECT_NE(before, middle(content)) << bytes;
    content[65'536] = 'x';
    content[65'535] = 'y';
    EXPECT_EQ(before, middle(content)) << bytes;
  }
}

TEST_F(FileBeginningTest, AShorterFile) {
  EXPECT_EQ(Of("123", 4).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Of(std::string(200'000, 'x'), 300'000).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(FileBeginningTest, WhatCanNotBeRead) {
  const UniqueFd folder = OpenFile(folder_.path(), O_RDONLY).value();
  EXPECT_FALSE(FileBeginning(folder.get(), 1).ok());
}

}  // namespace
}  // namespace rekindle
