#include "functions/function_catalog.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/test_user.h"
#include "dedup_store/store.h"

namespace rekindle::functions {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FunctionCatalogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = TemporaryDirectory::Make("/tmp", "rk-catalog-");
    ASSERT_TRUE(made.ok()) << made.status();
    directory_.emplace(*std::move(made));
    ASSERT_EQ(::chmod(directory_->path().c_str(), 0755), 0);
    ASSERT_EQ(::mkdir(Store("").c_str(), 0700), 0);
    for (const char* folder : {"code", "layer"}) ASSERT_EQ(::mkdir(Path(folder).c_str(), 0755), 0);
    SetCode("version 1");
  }

  std::string Path(const std::string& name) const { return directory_->path() + "/" + name; }
  std::string Store(const std::string& name) const {
    return name.empty() ? Path("store") : absl::StrCat(Path("store"), "/", name);
  }
  void SetCode(const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(Path("code/app.py"), text, 0644).ok());
    ASSERT_EQ(::chmod(Path("code/app.py").c_str(), 0644), 0);
  }
  FunctionSpec Spec(const std::string& name = "fn") const {
    FunctionSpec spec;
    spec.name = name;
    spec.handler = "app.handler";
    spec.code = Path("code");
    return spec;
  }
  std::unique_ptr<FunctionCatalog> Open(std::function<void(absl::string_view)> at_step = nullptr) const {
    FunctionCatalog::Options options;
    options.store = Store("");
    options.at_step = std::move(at_step);
    auto catalog = FunctionCatalog::Open(std::move(options));
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    return catalog.ok() ? *std::move(catalog) : nullptr;
  }
  absl::StatusOr<Deployed> Deploy(FunctionCatalog& catalog, const FunctionSpec& spec, bool replace = false,
                                  const Owner& owner = {::geteuid(), ::getegid(), {}}) const {
    DeployOptions options;
    options.replace = replace;
    return catalog.Deploy(spec, owner, options);
  }
  // Of the present revision, as a function would read it.
  static std::string CodeOf(const FunctionCatalog& catalog, const std::string& name = "fn") {
    auto record = catalog.Find(name);
    EXPECT_TRUE(record.ok()) << record.status();
    return record.ok() ? ReadFile(record->folder->code() + "/app.py").value_or("nothing") : "nothing";
  }
  std::vector<std::string> Files(const std::string& folder) const {
    return ListDirectory(Store(folder)).value_or(std::vector<std::string>());
  }

  // Another process can't have the catalog now.
  bool IsRefusedToOthers() const {
    const pid_t child = ::fork();
    if (child == 0) {
      FunctionCatalog::Options options;
      options.store = Store("");
      auto second = FunctionCatalog::Open(std::move(options));
      ::_exit(absl::IsUnavailable(second.status()) ? 0 : 1);
    }
    int state = -1;
    return ::waitpid(child, &state, 0) == child && state == 0;
  }

  std::optional<TemporaryDirectory> directory_;
};

TEST_F(FunctionCatalogTest, OtherSettingsAreGivenToTheCopyThatIsDeployed) {
  auto catalog = Open();
  FunctionSpec spec = Spec();
  spec.layers = {Path("layer")};
  ASSERT_TRUE(WriteFileAtomically(Path("layer/lib.py"), "layer").ok());
  ASSERT_TRUE(Deploy(*catalog, spec).ok());
  SetCode("version 2");
  std::filesystem::remove_all(Path("layer"));
  DeployOptions options;
  options.replace = true;
  options.code_of = *catalog->Find("fn");
  const Owner owner{::geteuid(), ::getegid(), {}};
  auto same = catalog->Deploy(spec, owner, options);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_TRUE(same->unchanged);
  spec.timeout_ms = 9000;
  auto adjusted = catalog->Deploy(spec, owner, options);
  ASSERT_TRUE(adjusted.ok()) << adjusted.status();
  EXPECT_TRUE(adjusted->adjusted);
  EXPECT_EQ(adjusted->record.revision, 1u);
  spec.memory_bytes = kLeastMemoryBytes;
  EXPECT_TRUE(absl::IsAborted(catalog->Deploy(spec, owner, options).status()))
      << "another call has set its time-out";
  options.code_of = *catalog->Find("fn");
  auto set = catalog->Deploy(spec, owner, options);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_FALSE(set->adjusted || set->unchanged);
  EXPECT_EQ(set->record.revision, 2u);
  EXPECT_EQ(set->record.code_sha256, options.code_of->code_sha256);
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  EXPECT_EQ(ReadFile(set->record.folder->layer(0) + "/lib.py").value_or(""), "layer");
  EXPECT_EQ(catalog->Find("fn")->spec, spec);

  // Of a revision that another call has replaced meanwhile.
  spec.memory_bytes *= 2;
  EXPECT_TRUE(absl::IsAborted(catalog->Deploy(spec, owner, options).status()));
  EXPECT_EQ(catalog->Find("fn")->revision, 2u);
  ASSERT_TRUE(catalog->Remove("fn").ok());
  EXPECT_TRUE(absl::IsAborted(catalog->Deploy(spec, owner, options).status()));
  EXPECT_TRUE(absl::IsNotFound(catalog->Find("fn").status()));
}

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
  ASSERT_TRUE(WriteFileAtomically(Path("layer/lib.py"), "layer").ok());
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
  ASSERT_TRUE(WriteFileAtomically(Path("layer/lib.py"), "layer").ok());
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
  EXPECT_EQ(ReadFile(catalog->Find("fn")->folder->layer(0) + "/lib.py").value_or(""), "layer");
}

// As a backup that was brought back under a daemon that runs.
TEST_F(FunctionCatalogTest, WhatAnotherStoreInItsPlaceHasStaysAsItIs) {
  auto catalog = Open();
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  std::filesystem::copy(Store(""), Path("backup"), std::filesystem::copy_options::recursive);
  SetCode("version 2");
  ASSERT_TRUE(Deploy(*catalog, Spec(), /*replace=*/true).ok());
  ASSERT_TRUE(catalog->HasItsFolder());
  std::filesystem::rename(Store(""), Path("own"));
  EXPECT_FALSE(catalog->HasItsFolder());
  EXPECT_TRUE(absl::IsUnavailable(catalog->Remove("fn")));
  std::filesystem::rename(Path("backup"), Store(""));
  const std::string record = ReadFile(Store("functions/fn/function.json")).value();
  EXPECT_FALSE(catalog->HasItsFolder());
  EXPECT_TRUE(absl::IsUnavailable(catalog->SetImages("fn", 2, {"deps/python:bare", "", {}})));
  EXPECT_TRUE(absl::IsUnavailable(catalog->Remove("fn")));
  EXPECT_EQ(ReadFile(Store("functions/fn/function.json")).value_or(""), record);
  // Its own, or a copy of that, it goes on with.
  std::filesystem::remove_all(Store(""));
  std::filesystem::copy(Path("own"), Store(""), std::filesystem::copy_options::recursive);
  EXPECT_TRUE(catalog->HasItsFolder());
  EXPECT_TRUE(catalog->SetImages("fn", 2, {"deps/python:bare", "", {}}).ok());
  EXPECT_TRUE(catalog->Remove("fn").ok());
}

// Whoever tidies layers asks the catalog what it has, and whoever reads an entry again looks for its layers.
TEST_F(FunctionCatalogTest, OneIsReadAgainWhileLayersAreTidied) {
  ASSERT_TRUE(WriteFileAtomically(Path("layer/lib.py"), "layer").ok());
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
  ASSERT_TRUE(WriteFileAtomically(Path("layer/lib.py"), "layer").ok());
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
  EXPECT_EQ(ReadFile(set->record.folder->layer(0) + "/lib.py").value_or(""), "layer");
}

TEST_F(FunctionCatalogTest, ADeployedFunctionOutlivesItsSourceAndTheProcess) {
  FunctionSpec spec = Spec();
  spec.layers = {Path("layer")};
  spec.environment = {{"TABLE", "orders"}};
  ASSERT_TRUE(WriteFileAtomically(Path("layer/lib.py"), "layer").ok());
  std::string digest;
  {
    auto catalog = Open();
    auto deployed = Deploy(*catalog, spec);
    ASSERT_TRUE(deployed.ok()) << deployed.status();
    EXPECT_FALSE(deployed->unchanged);
    EXPECT_EQ(deployed->record.revision, 1u);
    digest = deployed->record.code_sha256;
    ASSERT_TRUE(catalog->SetImages("fn", 1, {"dep:1", "fn:1", {"numpy"}}).ok());
  }
  ASSERT_TRUE(RemoveTree(Path("code")).ok());
  ASSERT_TRUE(RemoveTree(Path("layer")).ok());
  auto catalog = Open();
  auto record = catalog->Find("fn");
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->spec, spec);
  EXPECT_EQ(record->owner, (Owner{::geteuid(), ::getegid(), {}}));
  EXPECT_EQ(record->code_sha256, digest);
  EXPECT_EQ(record->code_bytes, 14u);
  EXPECT_EQ(record->images, (FunctionImages{"dep:1", "fn:1", {"numpy"}}));
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  EXPECT_EQ(*ReadFile(record->folder->layer(0) + "/lib.py"), "layer");
}

TEST_F(FunctionCatalogTest, ANewRevisionReplacesTheOldOneAndTheSameOneIsRecognised) {
  auto catalog = Open();
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  absl::Status again = Deploy(*catalog, Spec()).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(again.message()), HasSubstr("--replace"));
  ASSERT_TRUE(catalog->SetImages("fn", 1, {"dep:1", "fn:1", {}}).ok());

  auto unchanged = Deploy(*catalog, Spec(), true);
  ASSERT_TRUE(unchanged.ok());
  EXPECT_TRUE(unchanged->unchanged);
  EXPECT_EQ(unchanged->record.images.function_image, "fn:1");

  SetCode("version 2");
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  auto changed = Deploy(*catalog, Spec(), true);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_FALSE(changed->unchanged);
  EXPECT_EQ(changed->record.revision, 2u);
  EXPECT_EQ(changed->record.images, FunctionImages());
  EXPECT_EQ(CodeOf(*catalog), "version 2");
  EXPECT_EQ(catalog->SetImages("fn", 1, {"dep:1", "fn:1", {}}).code(), absl::StatusCode::kAborted);

  FunctionSpec other = Spec();
  other.environment = {{"N", "7"}};
  auto settings = Deploy(*catalog, other, true);
  ASSERT_TRUE(settings.ok());
  EXPECT_FALSE(settings->unchanged);
  EXPECT_FALSE(settings->adjusted);
  EXPECT_EQ(settings->record.revision, 3u);
}

TEST_F(FunctionCatalogTest, WhatInstancesNeedNotBeStartedAnewForIsNoNewRevision) {
  FunctionSpec spec = Spec();
  {
    auto catalog = Open();
    ASSERT_TRUE(Deploy(*catalog, spec).ok());
    ASSERT_TRUE(catalog->SetImages("fn", 1, {"dep:1", "fn:1", {}}).ok());
    spec.timeout_ms = 7;
    spec.max_instances = 3;
    spec.description = "quicker";
    DeployOptions options;
    options.replace = true;
    options.prepare = [](const FunctionRecord&, FunctionImages*) { return absl::InternalError("again"); };
    auto adjusted = catalog->Deploy(spec, {::geteuid(), ::getegid(), {}}, options);
    ASSERT_TRUE(adjusted.ok()) << adjusted.status();
    EXPECT_TRUE(adjusted->adjusted);
    EXPECT_FALSE(adjusted->unchanged);
    EXPECT_EQ(adjusted->record.revision, 1u);
    EXPECT_TRUE(Deploy(*catalog, spec, true)->unchanged);
    EXPECT_THAT(Files("functions/fn"), ElementsAre("1", "function.json"));
  }
  auto catalog = Open();
  auto record = catalog->Find("fn");
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->spec, spec);
  EXPECT_EQ(record->images, (FunctionImages{"dep:1", "fn:1", {}}));
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  // Instances are told whether they are provisioned.
  spec.provisioned = 1;
  EXPECT_EQ(Deploy(*catalog, spec, true)->record.revision, 2u);
  spec.provisioned = 2;
  EXPECT_EQ(Deploy(*catalog, spec, true)->record.revision, 2u);
  spec.start_timeout_ms = 90'000;
  EXPECT_EQ(Deploy(*catalog, spec, true)->record.revision, 3u);
}

TEST_F(FunctionCatalogTest, CodeStaysWhileAnInstanceOfItRuns) {
  auto catalog = Open();
  std::shared_ptr<const RevisionFolder> running = Deploy(*catalog, Spec())->record.folder;
  SetCode("version 2");
  ASSERT_TRUE(Deploy(*catalog, Spec(), true).ok());
  EXPECT_EQ(*ReadFile(running->code() + "/app.py"), "version 1");
  const std::string path = running->path();
  running.reset();
  EXPECT_FALSE(PathExists(path));
  EXPECT_EQ(CodeOf(*catalog), "version 2");

  running = catalog->Find("fn")->folder;
  ASSERT_TRUE(catalog->Remove("fn").ok());
  EXPECT_EQ(catalog->Find("fn").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*ReadFile(running->code() + "/app.py"), "version 2");
  // The name is free, while the folder of the old revision is still in use.
  SetCode("version 3");
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  EXPECT_EQ(*ReadFile(running->code() + "/app.py"), "version 2");
  running.reset();
  EXPECT_EQ(CodeOf(*catalog), "version 3");
  ASSERT_TRUE(catalog->Remove("fn").ok());
  EXPECT_THAT(Files("functions"), ElementsAre(".lock"));
  EXPECT_EQ(catalog->Remove("fn").code(), absl::StatusCode::kNotFound);
}

TEST_F(FunctionCatalogTest, NamesBelongToTheirOwners) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can deploy for others";
  auto catalog = Open();
  const Owner nobody{kNobody, kNobody, {4242}};
  auto deployed = Deploy(*catalog, Spec(), false, nobody);
  ASSERT_TRUE(deployed.ok()) << deployed.status();
  absl::Status theirs = Deploy(*catalog, Spec(), true).status();
  EXPECT_EQ(theirs.code(), absl::StatusCode::kPermissionDenied);
  struct stat info {};
  ASSERT_EQ(::stat(deployed->record.folder->path().c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kNobody);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  catalog.reset();
  EXPECT_EQ(Open()->Find("fn")->owner, nobody);
}

// Functions must reach their code, and nothing else that is in the store.
TEST_F(FunctionCatalogTest, TheWayThroughTheStoreShowsNothingElse) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can look with the eyes of others";
  store::StoreOptions store_options;
  store_options.path = Store("");
  store_options.create = true;
  ASSERT_TRUE(store::Store::Open(store_options).ok());
  ASSERT_TRUE(WriteFileAtomically(Store("of-another-version"), "x", 0644).ok());
  ASSERT_EQ(::chmod(Store("of-another-version").c_str(), 0644), 0);
  auto catalog = Open();
  struct stat info {};
  ASSERT_EQ(::stat(Store("").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u) << "there is nothing to reach yet";

  const Owner nobody{kNobody, kNobody, {}};
  ASSERT_TRUE(Deploy(*catalog, Spec("theirs"), false, nobody).ok());
  ASSERT_TRUE(Deploy(*catalog, Spec("roots")).ok());
  const std::string own = catalog->Find("theirs")->folder->path();
  size_t seen = 0;
  std::vector<std::string> open;
  std::vector<std::string> all = {Store("")};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(Store("")))
    all.push_back(entry.path());
  absl::Status looked = WithFileRightsOf(nobody, [&] {
    for (const std::string& path : all) {
      ++seen;
      if (UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)).valid()) open.push_back(path);
    }
    return absl::OkStatus();
  });
  ASSERT_TRUE(looked.ok()) << looked;
  EXPECT_GT(seen, 10u);
  EXPECT_THAT(open, ::testing::UnorderedElementsAre(own, own + "/code", own + "/code/app.py"));
  // Another user's look at it.
  ASSERT_TRUE(WithFileRightsOf({4711, 4711, {}}, [&] {
                EXPECT_FALSE(UniqueFd(::open((own + "/code/app.py").c_str(), O_RDONLY)).valid());
                return absl::OkStatus();
              }).ok());
}

TEST_F(FunctionCatalogTest, AClosedFolderAboveTheStoreIsNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can deploy for others";
  ASSERT_EQ(::chmod(directory_->path().c_str(), 0700), 0);
  auto catalog = Open();
  absl::Status status = Deploy(*catalog, Spec(), false, {kNobody, kNobody, {}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("can't enter " + directory_->path() + ","));
}

// Ends the process with SIGKILL at each of the steps; what there was before, or what was to be, is there
// afterwards.
TEST_F(FunctionCatalogTest, AKillAtAnyPointLeavesTheOldOrTheNewRevision) {
  { ASSERT_TRUE(Deploy(*Open(), Spec()).ok()); }
  const std::pair<const char*, bool> steps[] = {{"stage", false}, {"copy", false},   {"sync", false},
                                                {"place", false}, {"record", false}, {"retire", true}};
  int version = 1;
  // So many that progress is told in the middle of the copy.
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(OpenFile(Path(absl::StrCat("code/", i)), O_WRONLY | O_CREAT, 0644).ok());
  }
  for (const auto& [step, is_new] : steps) {
    const std::string before = absl::StrCat("version ", version);
    SetCode(absl::StrCat("version ", ++version));
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string at = step;
      auto catalog = Open([&](absl::string_view name) {
        if (name == at) ::raise(SIGKILL);
      });
      DeployOptions options;
      options.replace = true;
      options.progress = [&](uint64_t) {
        if (at == "copy") ::raise(SIGKILL);
      };
      catalog->Deploy(Spec(), {::geteuid(), ::getegid(), {}}, options).IgnoreError();
      ::_exit(0);
    }
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    ASSERT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL) << step;
    auto catalog = Open();
    EXPECT_EQ(CodeOf(*catalog), is_new ? absl::StrCat("version ", version) : before) << step;
    EXPECT_THAT(Files("functions"), ElementsAre(".lock", "fn")) << step;
    EXPECT_THAT(Files("functions/fn"),
                ElementsAre(absl::StrCat(catalog->Find("fn")->revision), "function.json"))
        << step;
    if (!is_new) --version;
  }
}

// While its images are made, which takes longest.
TEST_F(FunctionCatalogTest, AKillWhileANewRevisionIsPreparedLeavesTheOldOne) {
  for (const bool first : {true, false}) {
    const pid_t child = ::fork();
    if (child == 0) {
      DeployOptions options;
      options.replace = true;
      options.prepare = [](const FunctionRecord& staged, FunctionImages*) {
        if (PathExists(staged.folder->code() + "/app.py")) ::raise(SIGKILL);
        return absl::OkStatus();
      };
      Open()->Deploy(Spec(), {::geteuid(), ::getegid(), {}}, options).IgnoreError();
      ::_exit(0);
    }
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    ASSERT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL);
    auto catalog = Open();
    if (first) {
      EXPECT_TRUE(catalog->List().empty());
      EXPECT_THAT(Files("functions"), ElementsAre(".lock"));
      ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
      SetCode("version 2");
    } else {
      EXPECT_EQ(CodeOf(*catalog), "version 1");
      EXPECT_THAT(Files("functions/fn"), ElementsAre("1", "function.json"));
    }
  }
}

TEST_F(FunctionCatalogTest, WhatThereIsNoRoomForIsNotDeployed) {
  auto catalog = Open();
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  SetCode(std::string(40 << 20, 'x'));
  DeployOptions options;
  options.replace = true;
  const Owner owner{::geteuid(), ::getegid(), {}};
  std::vector<std::pair<uint64_t, bool>> asked;
  uint64_t room = 41 << 20;
  options.may_take = [&](uint64_t bytes, bool all) {
    asked.emplace_back(bytes, all);
    return bytes <= room ? absl::OkStatus() : absl::ResourceExhaustedError("no room");
  };
  for (const uint64_t limit : {uint64_t{20} << 20, (uint64_t{40} << 20) - 1}) {
    room = limit;
    asked.clear();
    absl::Status refused = catalog->Deploy(Spec(), owner, options).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(asked.front(), std::make_pair(uint64_t{0}, false));
    EXPECT_GT(asked.back().first, limit);
    EXPECT_EQ(CodeOf(*catalog), "version 1");
    EXPECT_THAT(Files("functions/fn"), ElementsAre("1", "function.json"));
  }
  room = uint64_t{41} << 20;
  ASSERT_TRUE(catalog->Deploy(Spec(), owner, options).ok());
  EXPECT_TRUE(asked.back().second);
}

TEST_F(FunctionCatalogTest, WhatCouldNotBePreparedOrWasCancelledHasNoEffect) {
  auto catalog = Open();
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  SetCode("version 2");
  std::atomic<bool> cancelled{false};
  DeployOptions options;
  options.replace = true;
  options.cancelled = &cancelled;
  options.prepare = [](const FunctionRecord&, FunctionImages*) { return absl::InternalError("no image"); };
  const Owner owner{::geteuid(), ::getegid(), {}};
  absl::Status failed = catalog->Deploy(Spec(), owner, options).status();
  EXPECT_THAT(std::string(failed.message()), HasSubstr("deploying function fn: no image"));
  options.prepare = [&](const FunctionRecord&, FunctionImages*) {
    cancelled = true;
    return absl::OkStatus();
  };
  EXPECT_EQ(catalog->Deploy(Spec(), owner, options).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  EXPECT_THAT(Files("functions/fn"), ElementsAre("1", "function.json"));
  cancelled = false;
  options.prepare = [](const FunctionRecord& staged, FunctionImages* images) {
    EXPECT_EQ(*ReadFile(staged.folder->code() + "/app.py"), "version 2");
    images->dependency_image = "dep:2";
    return absl::OkStatus();
  };
  ASSERT_TRUE(catalog->Deploy(Spec(), owner, options).ok());
  EXPECT_EQ(catalog->Find("fn")->images.dependency_image, "dep:2");
  EXPECT_EQ(CodeOf(*catalog), "version 2");
}

// Whoever was quicker is right: the other call's copy of the code goes.
TEST_F(FunctionCatalogTest, ADeploymentHasNoEffectWhenTheFunctionHasChangedMeanwhile) {
  auto catalog = Open();
  const Owner owner{::geteuid(), ::getegid(), {}};
  DeployOptions options;
  options.replace = true;
  std::function<void()> meanwhile;
  options.prepare = [&](const FunctionRecord&, FunctionImages*) {
    meanwhile();
    return absl::OkStatus();
  };
  auto deploy = [&](std::function<void()> change) {
    meanwhile = std::move(change);
    return catalog->Deploy(Spec(), owner, options).status();
  };
  // It was not there before.
  absl::Status late = deploy([&] {
    SetCode("quicker");
    ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  });
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(late.message()), HasSubstr("no effect"));
  EXPECT_EQ(CodeOf(*catalog), "quicker");
  SetCode("late");
  late = deploy([&] { ASSERT_TRUE(catalog->Remove("fn").ok()); });
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(catalog->List().empty());
  EXPECT_THAT(Files("functions"), ElementsAre(".lock"));
  // A damaged one was removed, with everything in its folder.
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  catalog.reset();
  ASSERT_TRUE(WriteFileAtomically(Store("functions/fn/function.json"), "{").ok());
  catalog = Open();
  late = deploy([&] { ASSERT_TRUE(catalog->Remove("fn").ok()); });
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted) << late;
  EXPECT_THAT(Files("functions"), ElementsAre(".lock"));
}

TEST_F(FunctionCatalogTest, AKillInTheFirstDeploymentOrTheRemovalLeavesNothing) {
  for (const char* step : {"stage", "sync", "place", "record", "clear"}) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto catalog = Open([&](absl::string_view name) {
        if (name == step) ::raise(SIGKILL);
      });
      Deploy(*catalog, Spec()).IgnoreError();
      catalog->Remove("fn").IgnoreError();
      ::_exit(0);
    }
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    ASSERT_TRUE(WIFSIGNALED(state)) << step;
    auto catalog = Open();
    EXPECT_TRUE(catalog->List().empty()) << step;
    EXPECT_THAT(Files("functions"), ElementsAre(".lock")) << step;
  }
}

TEST_F(FunctionCatalogTest, AFullDiskFailsTheDeploymentAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount";
  const pid_t child = ::fork();
  if (child == 0) {
    // A place of its own, which goes with the process.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("small", Store("").c_str(), "tmpfs", 0, "size=1m,mode=0700") != 0) {
      ::_exit(77);
    }
    auto catalog = Open();
    EXPECT_TRUE(Deploy(*catalog, Spec()).ok());
    EXPECT_TRUE(WriteFileAtomically(Path("code/large"), std::string(2 << 20, 'x'), 0644).ok());
    absl::Status status = Deploy(*catalog, Spec(), true).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is full"));
    EXPECT_EQ(CodeOf(*catalog), "version 1");
    EXPECT_THAT(Files("functions"), ElementsAre(".lock", "fn"));
    ::_exit(HasFailure() ? 1 : 0);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  ASSERT_TRUE(WIFEXITED(state));
  if (WEXITSTATUS(state) == 77) GTEST_SKIP() << "no mounts here";
  EXPECT_EQ(WEXITSTATUS(state), 0);
}

TEST_F(FunctionCatalogTest, ADamagedEntryIsNamedAndHarmsNoOther) {
  {
    auto catalog = Open();
    for (const char* name : {"good", "garbled", "codeless"}) ASSERT_TRUE(Deploy(*catalog, Spec(name)).ok());
  }
  ASSERT_TRUE(WriteFileAtomically(Store("functions/garbled/function.json"), "{\"format\": 1, ").ok());
  ASSERT_TRUE(RemoveTree(Store("functions/codeless/1/code")).ok());
  ::testing::internal::CaptureStderr();
  auto catalog = Open();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("function garbled is damaged"));
  EXPECT_THAT(log, HasSubstr("function codeless is damaged"));
  EXPECT_EQ(CodeOf(*catalog, "good"), "version 1");
  size_t damaged = 0;
  for (const FunctionRecord& record : catalog->List()) damaged += !record.trouble.ok();
  EXPECT_EQ(catalog->List().size(), 3u);
  EXPECT_EQ(damaged, 2u);
  absl::Status status = catalog->Find("garbled").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("function.json"));

  auto repaired = Deploy(*catalog, Spec("garbled"), true);
  ASSERT_TRUE(repaired.ok()) << repaired.status();
  EXPECT_FALSE(repaired->unchanged);
  EXPECT_EQ(CodeOf(*catalog, "garbled"), "version 1");
  EXPECT_TRUE(catalog->Remove("codeless").ok());
  EXPECT_THAT(Files("functions"), ElementsAre(".lock", "garbled", "good"));
}

TEST_F(FunctionCatalogTest, OneOfANewerVersionIsLeftToThat) {
  ASSERT_TRUE(Deploy(*Open(), Spec()).ok());
  const std::string path = Store("functions/fn/function.json");
  const std::string text = ReadFile(path).value();
  for (const std::string& newer : {std::string(R"({"format": 2, "name": "fn"})"),
                                   absl::StrCat("{\"of_later\": 1, ", text.substr(text.find('{') + 1))}) {
    ASSERT_TRUE(WriteFileAtomically(path, newer).ok());
    auto catalog = Open();
    for (const absl::Status& refused :
         {catalog->Find("fn").status(), Deploy(*catalog, Spec(), true).status(), catalog->Remove("fn")}) {
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("use a newer Rekindle"));
    }
    EXPECT_TRUE(catalog->ReadAgain().empty());
    EXPECT_EQ(ReadFile(path).value(), newer);
  }
  // And that one finds it as it was.
  ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  EXPECT_EQ(CodeOf(*Open(), "fn"), "version 1");
}

TEST_F(FunctionCatalogTest, OneThatCantBeReadNowIsReadAgain) {
  ASSERT_TRUE(Deploy(*Open(), Spec()).ok());
  const std::string path = Store("functions/fn/function.json");
  const std::string text = ReadFile(path).value();
  // No regular file: as any error of the disk.
  ASSERT_TRUE(RemoveTree(path).ok());
  ASSERT_TRUE(MakeDirectories(path + "/in-the-way").ok());
  auto catalog = Open();
  for (const absl::Status& refused :
       {catalog->Find("fn").status(), Deploy(*catalog, Spec(), true).status(), catalog->Remove("fn")}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  }
  EXPECT_TRUE(catalog->ReadAgain().empty());
  ASSERT_TRUE(RemoveTree(path).ok());
  ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  const std::vector<FunctionRecord> read = catalog->ReadAgain();
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].name(), "fn");
  EXPECT_TRUE(catalog->ReadAgain().empty());
  EXPECT_EQ(CodeOf(*catalog, "fn"), "version 1");
  EXPECT_TRUE(catalog->Remove("fn").ok());
}

TEST_F(FunctionCatalogTest, ARevisionThatWasRemovedDoesNotComeAgain) {
  auto catalog = Open();
  auto removed = Deploy(*catalog, Spec());
  ASSERT_TRUE(removed.ok()) << removed.status();
  ASSERT_TRUE(catalog->Remove("fn").ok());
  SetCode("of somebody else");
  auto later = Deploy(*catalog, Spec());
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_GT(later->record.revision, removed->record.revision);
  FunctionImages late;
  late.function_image = "late";
  EXPECT_EQ(catalog->SetImages("fn", removed->record.revision, late).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(catalog->Find("fn")->images.function_image.empty());
}

TEST_F(FunctionCatalogTest, WhatTheStoreHasLostIsDeployedAgain) {
  auto catalog = Open();
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  ASSERT_TRUE(RemoveTree(Store("functions")).ok());
  auto deployed = Deploy(*catalog, Spec(), /*replace=*/true);
  ASSERT_TRUE(deployed.ok()) << deployed.status();
  EXPECT_FALSE(deployed->unchanged);
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  EXPECT_EQ(Files("functions/fn").size(), 2u);
  EXPECT_TRUE(IsRefusedToOthers());
}

TEST_F(FunctionCatalogTest, FunctionsOfAnotherStoreAreNotWrittenOver) {
  const std::string other = Path("other");
  {
    auto catalog = Open();
    ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  }
  ASSERT_EQ(::rename(Store("functions").c_str(), other.c_str()), 0);
  auto catalog = Open();
  SetCode("version 2");
  ASSERT_TRUE(Deploy(*catalog, Spec("mine")).ok());
  ASSERT_TRUE(RemoveTree(Store("functions")).ok());
  ASSERT_EQ(::rename(other.c_str(), Store("functions").c_str()), 0);
  auto refused = Deploy(*catalog, Spec());
  EXPECT_TRUE(absl::IsUnavailable(refused.status())) << refused.status();
  EXPECT_THAT(refused.status().message(), HasSubstr("such as 'fn': start the daemon anew"));
  EXPECT_EQ(*ReadFile(Store("functions/fn/1/code/app.py")), "version 1");
}

TEST_F(FunctionCatalogTest, OneProcessHasTheCatalog) {
  auto catalog = Open();
  EXPECT_TRUE(IsRefusedToOthers());
}

TEST_F(FunctionCatalogTest, DeploymentsAtTheSameTimeDoNotMix) {
  auto catalog = Open();
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 6; ++i) {
        FunctionSpec spec = Spec(absl::StrCat("fn", t % 2));
        spec.environment = {{"N", absl::StrCat(1000 * t + i)}};
        auto deployed = Deploy(*catalog, spec, true);
        if (deployed.ok()) {
          ++done;
          EXPECT_EQ(*ReadFile(deployed->record.folder->code() + "/app.py"), "version 1");
        } else {
          EXPECT_EQ(deployed.status().code(), absl::StatusCode::kAborted) << deployed.status();
        }
        if (i % 3 == 2) catalog->Remove(spec.name).IgnoreError();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(done.load(), 6);
  for (const FunctionRecord& record : catalog->List())
    EXPECT_EQ(CodeOf(*catalog, record.name()), "version 1");
  for (const char* name : {"fn0", "fn1"}) catalog->Remove(name).IgnoreError();
  EXPECT_THAT(Files("functions"), ElementsAre(".lock"));
}

}  // namespace
}  // namespace rekindle::functions
