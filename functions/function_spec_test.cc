#include "functions/function_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace rekindle::functions {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::FunctionSpec Valid() {
  v1::FunctionSpec spec;
  spec.set_name("resize-image_2");
  spec.set_runtime("python3.11");
  spec.set_handler("app.handler");
  spec.set_code("/home/user/code");
  return spec;
}

// The message says which field is wrong.
void ExpectRefused(const v1::FunctionSpec& spec, const std::string& field, const std::string& words) {
  absl::StatusOr<FunctionSpec> result = FunctionSpecFrom(spec);
  ASSERT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << spec.ShortDebugString();
  const std::string message(result.status().message());
  EXPECT_THAT(message, ::testing::StartsWith(field + ": "));
  EXPECT_THAT(message, HasSubstr(words));
}

TEST(FunctionSpecTest, WhatIsNotSaidGetsItsDefault) {
  auto spec = FunctionSpecFrom(Valid());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->memory_bytes, uint64_t{1} << 30);
  EXPECT_EQ(spec->timeout_ms, 3000u);
  EXPECT_EQ(spec->start_timeout_ms, 60'000u);
  EXPECT_EQ(spec->provisioned, 0u);
  EXPECT_EQ(spec->network, v1::CloneOptions::HOST);
  EXPECT_EQ(spec->runtime, (Runtime{RuntimeKind::kPython, "3.11"}));
}

TEST(FunctionSpecTest, ComesBackFromItsMessage) {
  v1::FunctionSpec message = Valid();
  message.set_runtime("nodejs20.x");
  message.set_handler("src/index.api.get");
  for (const char* module : {"left-pad", "@aws-sdk/client-s3", "left-pad", "node:fs"})
    message.add_dependencies(module);
  message.set_discover_dependencies(true);
  message.add_layers("/opt/a/");
  message.add_layers("/opt/x/../b");
  (*message.mutable_environment())["TABLE"] = "orders";
  message.set_memory_bytes(256 << 20);
  message.set_timeout_ms(1);
  message.set_start_timeout_ms(90'000);
  message.set_provisioned(2);
  message.set_max_instances(2);
  message.set_network(v1::CloneOptions::OWN);
  message.set_cpus(0.5);
  message.set_description("resizes");
  auto spec = FunctionSpecFrom(message);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->dependencies, ElementsAre("@aws-sdk/client-s3", "left-pad", "node:fs"));
  EXPECT_THAT(spec->layers, ElementsAre("/opt/a", "/opt/b"));
  auto again = FunctionSpecFrom(ToProto(*spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *spec);
}

TEST(FunctionSpecTest, WithoutAnImageThereIsNothingToLoadDependenciesIn) {
  v1::FunctionSpec message = Valid();
  message.set_no_image(true);
  auto spec = FunctionSpecFrom(message);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->starts_from_images());
  EXPECT_EQ(*FunctionSpecFrom(ToProto(*spec)), *spec);
  message.set_discover_dependencies(true);
  ExpectRefused(message, "no_image", "name none");
  message.set_discover_dependencies(false);
  message.add_dependencies("json");
  ExpectRefused(message, "no_image", "name none");
  message.set_runtime("provided");
  message.clear_dependencies();
  EXPECT_FALSE(FunctionSpecFrom(message)->no_image);  // it never has one
}

TEST(FunctionSpecTest, NamesAreThoseOfLambda) {
  for (const std::string& name : {std::string("a"), std::string("A-b_9"), std::string(64, 'x')}) {
    EXPECT_TRUE(CheckFunctionName(name).ok()) << name;
  }
  for (const std::string& name : {std::string(), std::string("a.b"), std::string("a/b"), std::string(".."),
                                  std::string("ä"), std::string("a b"), std::string(65, 'x')}) {
    v1::FunctionSpec spec = Valid();
    spec.set_name(name);
    ExpectRefused(spec, "name", "1 to 64 letters");
  }
}

TEST(FunctionSpecTest, RuntimesAreKnownByLambdasNames) {
  const std::pair<const char*, Runtime> known[] = {
      {"python", {RuntimeKind::kPython, ""}},
      {"python3", {RuntimeKind::kPython, "3"}},
      {"python3.13", {RuntimeKind::kPython, "3.13"}},
      {"nodejs", {RuntimeKind::kNode, ""}},
      {"nodejs18.x", {RuntimeKind::kNode, "18"}},
      {"provided", {RuntimeKind::kProvided, ""}},
      {"provided.al2", {RuntimeKind::kProvided, "al2"}},
      {"provided.al2023", {RuntimeKind::kProvided, "al2023"}},
  };
  for (const auto& [text, runtime] : known) {
    auto parsed = ParseRuntime(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, runtime);
    EXPECT_EQ(parsed->Name(), text);
  }
  for (const char* text :
       {"java21", "python2.7", "python3.", "python3.x", "nodejs20", "node20.x", "provided.al", "Python"}) {
    v1::FunctionSpec spec = Valid();
    spec.set_runtime(text);
    ExpectRefused(spec, "runtime", "bootstrap");
  }
}

TEST(FunctionSpecTest, HandlersHaveTheShapeOfTheirRuntime) {
  const std::pair<const char*, const char*> good[] = {
      {"python", "app.handler"},   {"python", "pkg.app.handler"},   {"python", "folder/app.handler"},
      {"nodejs", "index.handler"}, {"nodejs", "src/a/index.x.get"}, {"provided", ""},
      {"provided", "hello"},
  };
  for (const auto& [runtime, handler] : good) {
    v1::FunctionSpec spec = Valid();
    spec.set_runtime(runtime);
    spec.set_handler(handler);
    EXPECT_TRUE(FunctionSpecFrom(spec).ok()) << runtime << " " << handler;
  }
  for (const char* handler : {"", "app", "app.", ".handler", "a//b.handler", "folder/app", "app .handler"}) {
    for (const char* runtime : {"python", "nodejs"}) {
      v1::FunctionSpec spec = Valid();
      spec.set_runtime(runtime);
      spec.set_handler(handler);
      ExpectRefused(spec, "handler", "");
    }
  }
  for (const char* handler : {"/etc/app.handler", "../app.handler", "a/../../app.handler"}) {
    v1::FunctionSpec spec = Valid();
    spec.set_handler(handler);
    ExpectRefused(spec, "handler", "leads out of the code folder");
  }
  v1::FunctionSpec spec = Valid();
  spec.set_handler(std::string(128, 'x') + ".y");
  ExpectRefused(spec, "handler", "the limit is 128");
}

TEST(FunctionSpecTest, DependenciesAreModulesOfTheRuntime) {
  for (const char* module : {"numpy", "sklearn.linear_model", "_cffi_backend"}) {
    EXPECT_TRUE(CheckDependency(RuntimeKind::kPython, module).ok()) << module;
  }
  for (const char* module : {"", "scikit-learn", "numpy==1.2", "a..b", "a,b", "os;import x", "a b"}) {
    v1::FunctionSpec spec = Valid();
    spec.add_dependencies(module);
    ExpectRefused(spec, "dependencies", "no name of a Python module");
  }
  for (const char* module : {"__main__", "pip.__main__"}) {
    v1::FunctionSpec spec = Valid();
    spec.add_dependencies(module);
    ExpectRefused(spec, "dependencies", "is a program");
  }
  for (const char* module : {"", "@aws-sdk", "./local", "a,b", "a//b", "../up", "@node:fs"}) {
    EXPECT_FALSE(CheckDependency(RuntimeKind::kNode, module).ok()) << module;
  }
  v1::FunctionSpec spec = Valid();
  spec.set_runtime("provided");
  spec.add_dependencies("numpy");
  ExpectRefused(spec, "dependencies", "leave them out");
  spec.clear_dependencies();
  spec.set_discover_dependencies(true);
  EXPECT_FALSE(FunctionSpecFrom(spec)->discover_dependencies);
}

TEST(FunctionSpecTest, FoldersAreAbsolute) {
  const std::pair<const char*, const char*> wrong[] = {{"", "no folder"},
                                                       {"code", "not absolute"},
                                                       {"./code", "not absolute"},
                                                       {"/", "whole file system"},
                                                       {"/a/..", "whole file system"}};
  for (const auto& [folder, words] : wrong) {
    v1::FunctionSpec spec = Valid();
    spec.set_code(folder);
    ExpectRefused(spec, "code", words);
    spec = Valid();
    spec.add_layers(folder);
    ExpectRefused(spec, "layers", words);
  }
  v1::FunctionSpec spec = Valid();
  for (int i = 0; i < 6; ++i) spec.add_layers(absl::StrCat("/opt/", i));
  ExpectRefused(spec, "layers", "the limit is 5");
}

TEST(FunctionSpecTest, TheEnvironmentIsCheckedAsOnLambda) {
  for (const char* name : {"_HANDLER", "AWS_LAMBDA_RUNTIME_API", "LAMBDA_TASK_ROOT", "REKINDLE_HOLD"}) {
    v1::FunctionSpec spec = Valid();
    (*spec.mutable_environment())[name] = "x";
    ExpectRefused(spec, "environment", absl::StrCat(name, " is reserved"));
  }
  for (const char* name : {"", "1A", "A-B", "A=B", "_A"}) {
    v1::FunctionSpec spec = Valid();
    (*spec.mutable_environment())[name] = "x";
    ExpectRefused(spec, "environment", "no name of a variable");
  }
  v1::FunctionSpec spec = Valid();
  (*spec.mutable_environment())["A"] = std::string("x\0y", 3);
  ExpectRefused(spec, "environment", "zero byte");
  (*spec.mutable_environment())["A"] = std::string(4095, 'x');
  EXPECT_TRUE(FunctionSpecFrom(spec).ok());
  (*spec.mutable_environment())["B"] = "";
  ExpectRefused(spec, "environment", "4097 bytes, the limit is 4096");
  // There is no role here whose credentials the node could give to a function.
  spec = Valid();
  (*spec.mutable_environment())["AWS_ACCESS_KEY_ID"] = "x";
  EXPECT_TRUE(FunctionSpecFrom(spec).ok());
}

TEST(FunctionSpecTest, LimitsAreThoseOfLambda) {
  for (uint64_t memory : {uint64_t{1}, (uint64_t{128} << 20) - 1, (uint64_t{10240} << 20) + 1}) {
    v1::FunctionSpec spec = Valid();
    spec.set_memory_bytes(memory);
    ExpectRefused(spec, "memory", "between 128.0 MiB and 10.0 GiB");
  }
  v1::FunctionSpec spec = Valid();
  spec.set_timeout_ms(15 * 60 * 1000);
  EXPECT_TRUE(FunctionSpecFrom(spec).ok());
  spec.set_timeout_ms(15 * 60 * 1000 + 1);
  ExpectRefused(spec, "timeout", "15 minutes");
  for (uint64_t start_ms : {uint64_t{999}, uint64_t{15 * 60 * 1000 + 1}}) {
    spec = Valid();
    spec.set_start_timeout_ms(start_ms);
    ExpectRefused(spec, "start_timeout", "between 1 s and 15 minutes");
  }
  for (double cpus : {-1.0, 0.0099, 1e300, std::numeric_limits<double>::quiet_NaN(),
                      std::numeric_limits<double>::infinity()}) {
    spec = Valid();
    spec.set_cpus(cpus);
    ExpectRefused(spec, "cpus", "no number of CPUs");
  }
  spec.set_cpus(0.01);
  EXPECT_TRUE(FunctionSpecFrom(spec).ok());
  spec = Valid();
  spec.set_provisioned(3);
  spec.set_max_instances(2);
  ExpectRefused(spec, "provisioned", "raise max_instances");
  spec = Valid();
  spec.set_description(std::string(257, 'x'));
  ExpectRefused(spec, "description", "the limit is 256");
  spec = Valid();
  spec.set_network(static_cast<v1::CloneOptions::Network>(7));
  ExpectRefused(spec, "network", "host, none, own");
}

TEST(FunctionSpecTest, WhatHasNoImageHasNoNetworkOfItsOwn) {
  for (auto network : {v1::CloneOptions::NONE, v1::CloneOptions::OWN}) {
    v1::FunctionSpec spec = Valid();
    spec.set_network(network);
    EXPECT_TRUE(FunctionSpecFrom(spec).ok());
    spec.set_no_image(true);
    spec.clear_dependencies();
    spec.set_discover_dependencies(false);
    ExpectRefused(spec, "network", "without --no-image");
    spec.set_no_image(false);
    spec.set_runtime("provided");
    ExpectRefused(spec, "network", "use the host's");
  }
}

}  // namespace
}  // namespace rekindle::functions
