// Layers of the functions in a catalog.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "functions/function_catalog_for_tests.h"

namespace rekindle::functions {
namespace {

using ::testing::ElementsAre;

TEST_F(FunctionCatalogTest, OtherLayersAreGivenToTheCopyThatIsDeployed) {
  auto catalog = Open();
  const auto make = [&](const std::string& folder, const std::string& text) {
    ASSERT_TRUE(MakeDirectories(Path(folder + "/python")).ok());
    ASSERT_TRUE(WriteFileAtomically(Path(folder + "/python/lib.py"), text).ok());
  };
  const auto packages = [&](const std::string& text) {
    ASSERT_TRUE(MakeDirectories(Path("venv/lib/python3.11/site-packages")).ok());
    ASSERT_TRUE(WriteFileAtomically(Path("venv/lib/python3.11/site-packages/lib.py"), text).ok());
    ASSERT_TRUE(WriteFileAtomically(Path("venv/pyvenv.cfg"), "home = /usr/bin\n").ok());
  };
  make("layer", "layer");
  packages("venv");
  FunctionSpec spec = Spec();
  spec.layers = {Path("layer")};
  spec.venv = Path("venv");
  DeployOptions options;
  options.replace = true;
  options.python = "3.11";
  const Owner owner{::geteuid(), ::getegid(), {}};
  ASSERT_TRUE(catalog->Deploy(spec, owner, options).ok());
  const auto contents = [&](size_t number, const std::string& folder) {
    return ReadFile(catalog->Find("fn")->folder->layer(number) + folder + "/lib.py").value_or("");
  };
  SetCode("version 2");
  std::filesystem::remove_all(Path("venv"));
  make("first", "first");
  make("second", "second");
  spec.layers = {Path("first"), Path("second")};
  options.code_of = *catalog->Find("fn");
  options.new_parts.layers = true;
  auto set = catalog->Deploy(spec, owner, options);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->record.revision, 2u);
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  EXPECT_EQ(contents(0, "/python"), "first");
  EXPECT_EQ(contents(1, "/python"), "second");
  EXPECT_EQ(contents(2, "/python/lib/python3.11/site-packages"), "venv") << "it stays";

  // The same folders, with what they have now; and once more.
  make("second", "changed");
  options.code_of = *catalog->Find("fn");
  ASSERT_TRUE(catalog->Deploy(spec, owner, options).ok());
  EXPECT_EQ(contents(1, "/python"), "changed");
  options.code_of = *catalog->Find("fn");
  set = catalog->Deploy(spec, owner, options);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_TRUE(set->unchanged);
  EXPECT_EQ(catalog->Find("fn")->revision, 3u);

  packages("another");
  spec.layers.clear();
  options.new_parts = {false, false, true};
  set = catalog->Deploy(spec, owner, options);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->record.layers.size(), 1u);
  EXPECT_EQ(contents(0, "/python/lib/python3.11/site-packages"), "another");
  spec.venv.clear();
  options.code_of = *catalog->Find("fn");
  options.new_parts = {};
  ASSERT_TRUE(catalog->Deploy(spec, owner, options).ok());
  EXPECT_TRUE(catalog->Find("fn")->layers.empty());
  EXPECT_EQ(CodeOf(*catalog), "version 1");
}

TEST_F(FunctionCatalogTest, FunctionsWithTheSameLayerHaveOneCopyOfIt) {
  auto catalog = Open();
  ASSERT_TRUE(WriteFileAtomically(Path("layer/lib.txt"), "layer").ok());
  FunctionSpec one = Spec("one"), two = Spec("two");
  one.layers = two.layers = {Path("layer")};
  ASSERT_TRUE(Deploy(*catalog, one).ok());
  uint64_t asked = 1000;  // of what is copied
  DeployOptions options;
  options.may_take = [&](uint64_t bytes, bool all) {
    if (all) asked = bytes;
    return absl::OkStatus();
  };
  ASSERT_TRUE(catalog->Deploy(two, {::geteuid(), ::getegid(), {}}, options).ok());
  EXPECT_EQ(asked, 9u);
  const FunctionRecord first = *catalog->Find("one"), second = *catalog->Find("two");
  EXPECT_EQ(first.layers, second.layers);
  EXPECT_EQ(first.folder->layer(0), second.folder->layer(0));
  EXPECT_EQ(first.code_bytes, 14u);
  EXPECT_EQ(first.own_bytes(), 9u);
  EXPECT_THAT(Files("functions/two/1"), ElementsAre("code"));

  // Another process finds it, and that one without it is damaged.
  catalog.reset();
  catalog = Open();
  ASSERT_TRUE(catalog->Find("one").ok());
  EXPECT_EQ(catalog->Find("one")->folder->layer(0), first.folder->layer(0));
  catalog.reset();
  std::filesystem::remove_all(first.folder->layer(0));
  EXPECT_TRUE(absl::IsDataLoss(Open()->Find("one").status()));
}

TEST_F(FunctionCatalogTest, ALayerThatCantBeLookedAtIsNotMissing) {
  ASSERT_TRUE(WriteFileAtomically(Path("layer/lib.txt"), "layer").ok());
  FunctionSpec spec = Spec();
  spec.layers = {Path("layer")};
  ASSERT_TRUE(Deploy(*Open(), spec).ok());
  const std::string layers = Store("functions/.layers"), aside = Path("aside");
  std::filesystem::rename(layers, aside);
  std::filesystem::create_symlink(layers, layers);  // ELOOP: as any error of the disk
  auto catalog = Open();
  EXPECT_TRUE(absl::IsUnavailable(catalog->Find("fn").status())) << catalog->Find("fn").status();
  std::filesystem::remove(layers);
  std::filesystem::rename(aside, layers);
  ASSERT_EQ(catalog->ReadAgain().size(), 1u);
  EXPECT_EQ(ReadFile(catalog->Find("fn")->folder->layer(0) + "/lib.txt").value_or(""), "layer");
}

// Whoever tidies layers asks the catalog what it has, and whoever reads an entry again looks for its layers.
TEST_F(FunctionCatalogTest, OneIsReadAgainWhileLayersAreTidied) {
  ASSERT_TRUE(WriteFileAtomically(Path("layer/lib.txt"), "layer").ok());
  FunctionSpec spec = Spec();
  spec.layers = {Path("layer")};
  ASSERT_TRUE(Deploy(*Open(), spec).ok());
  const std::string path = Store("functions/fn/function.json");
  const std::string text = ReadFile(path).value();
  ASSERT_TRUE(RemoveTree(path).ok());
  ASSERT_TRUE(MakeDirectories(path + "/in-the-way").ok());
  auto catalog = Open();
  ASSERT_TRUE(absl::IsUnavailable(catalog->Find("fn").status()));
  ASSERT_TRUE(RemoveTree(path).ok());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::thread reader;
  size_t read = 0, listed = 0;
  catalog->layers().Tidy([&]() -> absl::StatusOr<std::set<LayerKey>> {
    reader = std::thread([&] { read = catalog->ReadAgain().size(); });
    // As soon as it is open for writing, somebody reads it.
    const UniqueFd record(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT_EQ(::write(record.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    listed = catalog->List().size();
    return absl::UnavailableError("nobody knows");
  });
  reader.join();
  EXPECT_EQ(listed, 1u);
  EXPECT_EQ(read, 1u);
}

TEST_F(FunctionCatalogTest, CopiesOfLayersThatAnOlderVersionHasMadeAreUsed) {
  FunctionSpec spec = Spec();
  ASSERT_TRUE(Deploy(*Open(), spec).ok());
  ASSERT_TRUE(WriteFileAtomically(Path("layer/lib.txt"), "layer").ok());
  std::filesystem::create_directories(Store("functions/fn/1/layers"));
  std::filesystem::copy(Path("layer"), Store("functions/fn/1/layers/0"));
  std::string record = *ReadFile(Store("functions/fn/function.json"));
  const size_t at = record.find("\"code\"");
  ASSERT_NE(at, std::string::npos) << record;
  record.insert(at, absl::StrCat("\"layers\": [\"", Path("layer"), "\"], "));
  ASSERT_TRUE(WriteFileAtomically(Store("functions/fn/function.json"), record).ok());
  std::filesystem::remove_all(Path("layer"));

  auto catalog = Open();
  auto found = catalog->Find("fn");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->layers.empty());
  EXPECT_EQ(found->folder->layer(0), Store("functions/fn/1/layers/0"));
  // Other settings put it where all are.
  DeployOptions options;
  options.replace = true;
  options.code_of = *found;
  FunctionSpec other = found->spec;
  other.memory_bytes = kLeastMemoryBytes;
  auto set = catalog->Deploy(other, found->owner, options);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->record.layers.size(), 1u);
  EXPECT_EQ(ReadFile(set->record.folder->layer(0) + "/lib.txt").value_or(""), "layer");
}

}  // namespace
}  // namespace rekindle::functions
