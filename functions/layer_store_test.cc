#include "functions/layer_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_user.h"
#include "functions/sealed_folder.h"

namespace rekindle::functions {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Runtime kPython3{RuntimeKind::kPython, ""};

class LayerStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = TemporaryDirectory::Make("/tmp", "rk-layers-");
    ASSERT_TRUE(made.ok()) << made.status();
    directory_.emplace(*std::move(made));
    ASSERT_EQ(::chmod(directory_->path().c_str(), 0755), 0);
    ASSERT_EQ(::mkdir(Path("functions").c_str(), 0711), 0);
    store_.emplace(Path("functions"));
    Write("one/python/lib.py", "VALUE = 1\n");
  }

  std::string Path(const std::string& name) const { return directory_->path() + "/" + name; }
  void Write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    ASSERT_TRUE(WriteFileAtomically(Path(name), content, 0644).ok());
  }
  void Copy(const std::string& from, const std::string& to) const {
    std::filesystem::copy(
        Path(from), Path(to),
        std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
  }
  LayerPtr Bring(const std::string& folder, const Owner& owner = {::geteuid(), ::getegid(), {}}) {
    auto layer = store_->Bring({Path(folder), "", ""}, owner, {});
    EXPECT_TRUE(layer.ok()) << layer.status();
    return layer.ok() ? *layer : nullptr;
  }
  LayerPtr BringEnvironment(const std::string& folder) {
    auto found = FindLayerFolder(Path(folder), kPython3, "3.11", /*must_be_environment=*/true);
    EXPECT_TRUE(found.ok()) << found.status();
    auto layer = found.ok() ? store_->Bring(*found, {::geteuid(), ::getegid(), {}}, {}) : found.status();
    EXPECT_TRUE(layer.ok()) << layer.status();
    return layer.ok() ? *layer : nullptr;
  }
  void Tidy(const std::set<LayerKey>& wanted = {}) {
    store_->Tidy([&] { return wanted; });
  }

  std::optional<TemporaryDirectory> directory_;
  std::optional<LayerStore> store_;
};

TEST_F(LayerStoreTest, ANewCopyIsPreparedBeforeItIsThere) {
  const Owner owner{::geteuid(), ::getegid(), {}};
  int times = 0;
  const auto bring = [&](bool works) {
    return store_->Bring(
        {Path("one"), "", ""}, owner, {}, [&](const std::string& staged, const std::string& path) {
          ++times;
          EXPECT_FALSE(PathExists(path));
          EXPECT_TRUE(PathExists(staged + "/python/lib.py"));
          std::filesystem::create_directory(staged + "/python/__pycache__");
          EXPECT_TRUE(
              WriteFileAtomically(staged + "/python/__pycache__/lib.pyc", std::string(10'000, 'x'), 0644)
                  .ok());
          return works ? absl::OkStatus() : absl::CancelledError("no");
        });
  };
  EXPECT_TRUE(absl::IsCancelled(bring(false).status()));
  EXPECT_TRUE(store_->Sizes().empty());
  const auto made = bring(true);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(PathExists((*made)->path() + "/python/__pycache__/lib.pyc"));
  EXPECT_GT((*made)->bytes(), 10'000);
  EXPECT_EQ(*bring(true), *made);
  EXPECT_EQ(times, 2);
}

TEST_F(LayerStoreTest, BelowAColonNothingWouldFindThem) {
  ASSERT_EQ(::mkdir(Path("a:b").c_str(), 0711), 0);
  LayerStore other(Path("a:b"));
  const auto layer = other.Bring({Path("one"), "", ""}, {::geteuid(), ::getegid(), {}}, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(layer.status())) << layer.status();
}

TEST_F(LayerStoreTest, TheSameContentsAreOneLayer) {
  Copy("one", "two");
  // Neither when it was written, nor what Python has compiled of it.
  const timespec old[] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, Path("two/python/lib.py").c_str(), old, 0), 0);
  Write("two/python/__pycache__/lib.cpython-311.pyc", "compiled");
  const LayerPtr one = Bring("one"), two = Bring("two");
  EXPECT_EQ(one, two);
  EXPECT_EQ(one->path(), absl::StrCat(Path("functions/.layers/"), ::geteuid(), "/", one->digest()));
  EXPECT_EQ(ReadFile(one->path() + "/python/lib.py").value_or(""), "VALUE = 1\n");
  EXPECT_EQ(one->bytes(), 10u);
  EXPECT_EQ(store_->Sizes(), (std::map<LayerKey, uint64_t>{{{::geteuid(), one->digest()}, 10}}));
}

TEST_F(LayerStoreTest, NamesModesLinksAndBytesCount) {
  const LayerPtr one = Bring("one");
  Copy("one", "other_name");
  std::filesystem::rename(Path("other_name/python/lib.py"), Path("other_name/python/library.py"));
  Copy("one", "other_mode");
  ASSERT_EQ(::chmod(Path("other_mode/python/lib.py").c_str(), 0755), 0);
  Copy("one", "with_link");
  ASSERT_EQ(::symlink("lib.py", Path("with_link/python/also.py").c_str()), 0);
  Copy("with_link", "other_link");
  std::filesystem::remove(Path("other_link/python/also.py"));
  ASSERT_EQ(::symlink("./lib.py", Path("other_link/python/also.py").c_str()), 0);
  Copy("one", "other_bytes");
  Write("other_bytes/python/lib.py", "VALUE = 2\n");
  std::set<std::string> digests = {one->digest()};
  for (const char* folder : {"other_name", "other_mode", "with_link", "other_link", "other_bytes"})
    EXPECT_TRUE(digests.insert(Bring(folder)->digest()).second) << folder;
}

TEST_F(LayerStoreTest, OneGoesWhenNobodyRefersToIt) {
  LayerPtr one = Bring("one");
  const LayerKey key{::geteuid(), one->digest()};
  const std::string path = one->path();
  EXPECT_FALSE(store_->TakeAnyGone());
  Tidy();
  EXPECT_TRUE(PathExists(path));
  one.reset();
  EXPECT_TRUE(store_->TakeAnyGone());
  store_->Tidy([] { return absl::UnavailableError("nobody knows"); });
  Tidy({key});
  EXPECT_TRUE(PathExists(path));
  // As of an image, after a start.
  store_.emplace(Path("functions"));
  ASSERT_TRUE(store_->Find(key).ok());
  EXPECT_EQ((*store_->Find(key))->bytes(), 10u);
  Tidy();
  EXPECT_FALSE(PathExists(path));
  EXPECT_TRUE(absl::IsNotFound(store_->Find(key).status()));
  EXPECT_THAT(*ListDirectory(Path("functions")), IsEmpty());
  EXPECT_TRUE(PathExists(Bring("one")->path()));
}

TEST_F(LayerStoreTest, WhatAFileOnlySaysThatItHasDoesNotCount) {
  const LayerPtr one = Bring("one");
  ASSERT_EQ(::truncate((one->path() + "/python/lib.py").c_str(), off_t{1} << 40), 0);
  store_.emplace(Path("functions"));
  EXPECT_LE((*store_->Find({::geteuid(), one->digest()}))->bytes(), 1u << 20);
  EXPECT_LE(store_->Sizes().begin()->second, 1u << 20);
}

TEST_F(LayerStoreTest, UsersShareNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const Owner anna{kNobody, kNobody, {}}, bert{kNobody - 1, kNobody - 1, {}};
  const LayerPtr hers = Bring("one", anna), his = Bring("one", bert);
  EXPECT_EQ(hers->digest(), his->digest());
  EXPECT_NE(hers->path(), his->path());
  for (const auto& [layer, owner] : {std::pair(hers, anna), std::pair(his, bert)})
    EXPECT_TRUE(IsSealed(layer->path(), owner));
  ASSERT_EQ(::chown(hers->path().c_str(), anna.uid, anna.gid), 0);  // as an older version has left it
  EXPECT_FALSE(IsSealed(hers->path(), anna));
  store_->SealAll();
  EXPECT_TRUE(IsSealed(hers->path(), anna));
}

TEST_F(LayerStoreTest, OfAVirtualEnvironmentItsPackages) {
  Write("venv/lib/python3.11/site-packages/lib.py", "VALUE = 1\n");
  Write("venv/pyvenv.cfg", "home = /usr/bin\ncommand = /usr/bin/python3 -m venv /one/place\n");
  std::filesystem::create_directories(Path("venv/bin"));
  ASSERT_EQ(::symlink("/usr/bin/python3", Path("venv/bin/python3").c_str()), 0);
  Copy("venv", "elsewhere");
  Write("elsewhere/pyvenv.cfg", "home = /usr/bin\ncommand = /usr/bin/python3 -m venv /another\n");
  const LayerPtr layer = BringEnvironment("venv");
  EXPECT_EQ(layer, BringEnvironment("elsewhere"));
  EXPECT_EQ(ReadFile(layer->path() + "/pyvenv.cfg").value_or(""), "version = 3.11\n");
  EXPECT_TRUE(PathExists(layer->path() + "/python/lib/python3.11/site-packages/lib.py"));
  EXPECT_FALSE(PathExists(layer->path() + "/bin"));
}

TEST_F(LayerStoreTest, WhatIsNoLayerIsTold) {
  const auto told = [&](const std::string& folder, const Runtime& runtime, const char* python, bool must_be) {
    const absl::Status status = FindLayerFolder(Path(folder), runtime, python, must_be).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  Write("venv/lib/python3.9/site-packages/lib.py", "");
  Write("venv/pyvenv.cfg", "");
  EXPECT_THAT(told("venv", kPython3, "3.11", false), HasSubstr("of Python 3.9, and the runtime python"));
  EXPECT_THAT(told("venv", kPython3, "3.11", false), HasSubstr("is Python 3.11"));
  EXPECT_THAT(told("venv", {RuntimeKind::kNode, ""}, "", false), HasSubstr("the runtime is nodejs"));
  Write("hollow/pyvenv.cfg", "");
  EXPECT_THAT(told("hollow", kPython3, "3.11", false), HasSubstr("no folder lib/python3.11/site-packages"));
  EXPECT_THAT(told("one", kPython3, "3.11", true), HasSubstr("has no pyvenv.cfg"));
  Write("target/numpy/__init__.py", "");
  Write("target/numpy-1.0.dist-info/METADATA", "");
  EXPECT_THAT(told("target", kPython3, "3.11", false), HasSubstr("--target"));
  Write("packages/node_modules/left-pad/index.js", "");
  EXPECT_THAT(told("packages", {RuntimeKind::kNode, ""}, "", false), HasSubstr("nodejs"));
  Write("bare/requests/__init__.py", "");
  EXPECT_THAT(told("bare", kPython3, "3.11", false), HasSubstr("--target"));
  Write("module/one.py", "");
  EXPECT_THAT(told("module", kPython3, "3.11", false), HasSubstr("its folder python"));
  Write("flat/left-pad/package.json", "{}");
  EXPECT_THAT(told("flat", {RuntimeKind::kNode, ""}, "", false), HasSubstr("nodejs/node_modules"));
  EXPECT_TRUE(FindLayerFolder(Path("flat"), kPython3, "3.11", false).ok()) << "it may be data";
  EXPECT_TRUE(FindLayerFolder(Path("one"), kPython3, "3.11", false).ok());
  Write("target/bin/f2py", "");
  EXPECT_THAT(told("target", kPython3, "3.11", false), HasSubstr("--target"));
  Write("tools/bin/convert", "");
  Write("tools/setup.py", "");
  Write("tools/data/package.json", "{}");
  EXPECT_TRUE(FindLayerFolder(Path("tools"), kPython3, "3.11", false).ok());
  EXPECT_TRUE(FindLayerFolder(Path("tools"), {RuntimeKind::kNode, ""}, "", false).ok());
}

}  // namespace
}  // namespace rekindle::functions
