// A catalog in a store of its own, and the code that is deployed into it.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "functions/function_catalog.h"

namespace rekindle::functions {

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
  static absl::Status SetImages(FunctionCatalog& catalog, uint64_t revision, const FunctionImages& images) {
    return catalog
        .ChangeImages("fn", revision,
                      [&](FunctionImages* noted) {
                        *noted = images;
                        return true;
                      })
        .status();
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

}  // namespace rekindle::functions
