// What the tests of the Runtime API's server share.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "functions/http_client_for_tests.h"
#include "functions/request_id.h"
#include "functions/runtime_api.h"

namespace rekindle::functions {

inline constexpr absl::string_view kNext = "/2018-06-01/runtime/invocation/next";

inline std::string ResponsePath(const std::string& id) {
  return absl::StrCat("/2018-06-01/runtime/invocation/", id, "/response");
}
inline std::string ErrorPath(const std::string& id) {
  return absl::StrCat("/2018-06-01/runtime/invocation/", id, "/error");
}
inline std::string NextRequest() { return absl::StrCat("GET ", kNext, " HTTP/1.1\r\nHost: h\r\n\r\n"); }

// Remembers what it is told, in order.
class Recorder : public RuntimeApi::Observer {
 public:
  void OnReady() override { Note("ready"); }
  void OnInitError(std::string type, std::string body) override {
    Note(absl::StrCat("init ", type, " ", body));
  }
  void OnRestoreError(std::string type, std::string body) override {
    Note(absl::StrCat("restore ", type, " ", body));
  }
  void OnAnswer(std::string request_id, Answer answer) override {
    absl::MutexLock lock(&mutex_);
    ids_.push_back(std::move(request_id));
    answers_.push_back(std::move(answer));
  }

  std::vector<std::string> WaitForNotes(size_t count) {
    absl::MutexLock lock(&mutex_);
    auto come = [&] { return notes_.size() >= count; };
    mutex_.AwaitWithTimeout(absl::Condition(&come), absl::Minutes(1));
    return notes_;
  }
  // The answer to the invocation that was told as the `count`th.
  std::pair<std::string, Answer> WaitForAnswer(size_t count) {
    absl::MutexLock lock(&mutex_);
    auto come = [&] { return answers_.size() >= count; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&come), absl::Minutes(1))) return {};
    return {ids_[count - 1], answers_[count - 1]};
  }
  size_t answers() {
    absl::MutexLock lock(&mutex_);
    return answers_.size();
  }

 private:
  void Note(std::string note) {
    absl::MutexLock lock(&mutex_);
    notes_.push_back(std::move(note));
  }

  absl::Mutex mutex_;
  std::vector<std::string> notes_, ids_;
  std::vector<Answer> answers_;
};

// One server, on each kind of socket.
class RuntimeApiFixture : public ::testing::TestWithParam<TestAddress::Kind> {
 protected:
  void Start(RuntimeApi::Options options = {}) {
    auto api = RuntimeApi::Start(threads_, address_.TakeListener(), std::move(options), recorder_);
    ASSERT_TRUE(api.ok()) << api.status();
    api_ = *std::move(api);
  }

  std::string Invoke(std::string payload) {
    Invocation invocation;
    invocation.request_id = NewRequestId();
    invocation.payload = std::make_shared<const std::string>(std::move(payload));
    invocation.function_arn = "arn:f";
    invocation.deadline = absl::FromUnixMillis(1700000000123);
    std::string id = invocation.request_id;
    api_->Invoke(std::move(invocation));
    return id;
  }

  TestAddress address_{GetParam()};
  HttpThreads threads_;
  std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
  std::unique_ptr<RuntimeApi> api_;
};

inline std::string NameOfSocket(const ::testing::TestParamInfo<TestAddress::Kind>& kind) {
  return kind.param == TestAddress::kUnix ? "Unix" : "Tcp";
}

}  // namespace rekindle::functions
