// The HTTP front with an invoker that does what a test wants.
#pragma once

#include <gtest/gtest.h>

#include <any>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "functions/http_client_for_tests.h"
#include "functions/invoke_api.h"

namespace rekindle::functions {

inline constexpr absl::string_view kListPath = "/2015-03-31/functions/";

inline std::string InvokePath(absl::string_view function) {
  return absl::StrCat(kListPath, function, "/invocations");
}

inline InvokeResult ResultOf(std::string payload) {
  InvokeResult result;
  result.payload = std::move(payload);
  return result;
}

// Runs what the test gives it; remembers the last request.
class TestInvoker : public Invoker {
 public:
  using Run = std::function<void(InvokeRequest, Done)>;

  void Become(Run run) {
    absl::MutexLock lock(&mutex_);
    run_ = std::move(run);
  }
  void Invoke(InvokeRequest request, Done done) override {
    Run run;
    {
      absl::MutexLock lock(&mutex_);
      last_ = request;
      run = run_;
    }
    run(std::move(request), std::move(done));
  }
  absl::StatusOr<std::vector<ListedFunction>> List(const std::any& identity) override {
    if (!identity.has_value() || std::any_cast<std::string>(identity) != "nobody") return listed;
    return absl::PermissionDeniedError("not yours");
  }
  InvokeRequest last() {
    absl::MutexLock lock(&mutex_);
    return last_;
  }

  std::vector<ListedFunction> listed;

 private:
  absl::Mutex mutex_;
  InvokeRequest last_ ABSL_GUARDED_BY(mutex_);
  Run run_ ABSL_GUARDED_BY(mutex_) = [](InvokeRequest request, Done done) {
    done(ResultOf(std::move(request.payload)));
  };
};

class InvokeApiTest : public ::testing::TestWithParam<TestAddress::Kind> {
 protected:
  void Start(InvokeApi::Options options = {}) {
    std::vector<UniqueFd> listeners;
    listeners.push_back(address_.TakeListener());
    auto api = InvokeApi::Start(*threads_, std::move(listeners), std::move(options), invoker_);
    ASSERT_TRUE(api.ok()) << api.status();
    api_ = *std::move(api);
  }

  TestAddress address_{GetParam()};
  std::unique_ptr<HttpThreads> threads_ = std::make_unique<HttpThreads>();
  std::shared_ptr<TestInvoker> invoker_ = std::make_shared<TestInvoker>();
  std::unique_ptr<InvokeApi> api_;
};

}  // namespace rekindle::functions
