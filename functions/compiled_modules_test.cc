#include "functions/compiled_modules.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle::functions {
namespace {

using ::testing::ElementsAre;

class CompiledModulesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = TemporaryDirectory::Make("/tmp", "rk-compiled-");
    ASSERT_TRUE(made.ok()) << made.status();
    directory_.emplace(*std::move(made));
    Write("layer/package/lib.py", "source");
    Write("compiled/package/__pycache__/lib.cpython-311.pyc", "compiled");
  }
  std::string Path(const std::string& name) const { return absl::StrCat(directory_->path(), "/", name); }
  void Write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    ASSERT_TRUE(WriteFileAtomically(Path(name), content, 0644).ok());
  }
  absl::Status Add(uint64_t most_bytes = 1 << 20) const {
    const UniqueFd compiled(::open(Path("compiled").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return AddCompiledModules(compiled.get(), Path("layer"), most_bytes);
  }
  std::string Read(const std::string& name) const { return ReadFile(Path(name)).value_or("nothing"); }

  std::optional<TemporaryDirectory> directory_;
};

TEST_F(CompiledModulesTest, TheyComeToTheirSources) {
  Write("layer/package/__pycache__/lib.cpython-311.pyc", "of before");
  Write("layer/package/__pycache__/lib.cpython-310.pyc", "of another version");
  ASSERT_TRUE(Add().ok());
  EXPECT_EQ(Read("layer/package/__pycache__/lib.cpython-311.pyc"), "compiled");
  EXPECT_EQ(Read("layer/package/__pycache__/lib.cpython-310.pyc"), "of another version");
  struct stat info {};
  ASSERT_EQ(::stat(Path("layer/package/__pycache__/lib.cpython-311.pyc").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0644u);
}

// Whoever has made them may have put anything there.
TEST_F(CompiledModulesTest, NothingElseDoes) {
  Write("secret", "secret");
  Write("compiled/package/lib.py", "another source");
  Write("compiled/package/__pycache__/not_compiled.py", "x");
  Write("compiled/unknown/__pycache__/lib.cpython-311.pyc", "x");
  std::filesystem::create_symlink(Path("secret"), Path("compiled/package/__pycache__/link.pyc"));
  ASSERT_EQ(::mkfifo(Path("compiled/package/__pycache__/fifo.pyc").c_str(), 0600), 0);
  std::filesystem::create_directories(Path("compiled/package/__pycache__/folder.pyc"));
  std::filesystem::create_directories(Path("elsewhere/__pycache__"));
  std::filesystem::create_symlink(Path("elsewhere"), Path("layer/link"));
  Write("compiled/link/__pycache__/lib.cpython-311.pyc", "x");
  ASSERT_TRUE(Add().ok());
  EXPECT_EQ(Read("layer/package/lib.py"), "source");
  EXPECT_THAT(*ListDirectory(Path("layer/package/__pycache__")), ElementsAre("lib.cpython-311.pyc"));
  EXPECT_FALSE(PathExists(Path("layer/unknown")));
  EXPECT_TRUE(std::filesystem::is_empty(Path("elsewhere/__pycache__")));
}

TEST_F(CompiledModulesTest, NotMoreThanTheyMayBe) {
  Write("layer/package/large.py", "source");
  Write("compiled/package/__pycache__/large.cpython-311.pyc", "");
  ASSERT_EQ(::truncate(Path("compiled/package/__pycache__/large.cpython-311.pyc").c_str(), off_t{1} << 40),
            0);
  const absl::Status refused = Add();
  EXPECT_TRUE(absl::IsOutOfRange(refused)) << refused;
  EXPECT_FALSE(PathExists(Path("layer/package/__pycache__/large.cpython-311.pyc")));
}

TEST_F(CompiledModulesTest, EmptyOnesTakeRoomAsWell) {
  for (int i = 0; i < 3; ++i) Write(absl::StrCat("compiled/package/__pycache__/lib.", i, ".pyc"), "");
  Write("compiled/package/__pycache__/of_nothing.pyc", "");
  const absl::Status refused = Add(3 * 4096);
  EXPECT_TRUE(absl::IsOutOfRange(refused)) << refused;
  EXPECT_FALSE(PathExists(Path("layer/package/__pycache__/of_nothing.pyc")));
}

}  // namespace
}  // namespace rekindle::functions
