// What is invoked, answered and told to the observer.
#include "functions/runtime_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "functions/http_client_for_tests.h"
#include "functions/request_id.h"
#include "functions/runtime_api_for_tests.h"

namespace rekindle::functions {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RuntimeApiTest : public RuntimeApiFixture {};

INSTANTIATE_TEST_SUITE_P(Sockets, RuntimeApiTest, ::testing::Values(TestAddress::kUnix, TestAddress::kTcp),
                         NameOfSocket);

TEST_P(RuntimeApiTest, WhatIsTakenBackIsNotGivenAndWhatIsGivenCanNotBe) {
  Start();
  Invocation first;
  first.request_id = "first";
  first.payload = std::make_shared<const std::string>("1");
  first.taken = std::make_shared<std::atomic<bool>>(false);
  Invocation second = first;
  second.request_id = "second";
  second.taken = std::make_shared<std::atomic<bool>>(false);
  api_->Invoke(first);
  api_->Invoke(second);
  EXPECT_FALSE(first.taken->exchange(true));
  HttpClient runtime(address_);
  EXPECT_EQ(runtime.Get(kNext).headers["lambda-runtime-aws-request-id"], "second");
  EXPECT_TRUE(*second.taken);
  // The same once more, as long as it is not answered.
  EXPECT_EQ(HttpClient(address_).Get(kNext).headers["lambda-runtime-aws-request-id"], "second");
}

TEST_P(RuntimeApiTest, AnInvocationHasItsHeadersAndItsAnswerIsTold) {
  Start();
  HttpClient runtime(address_);
  runtime.Send(NextRequest());
  EXPECT_THAT(recorder_->WaitForNotes(1), ElementsAre("ready"));
  Invocation invocation;
  invocation.request_id = "8476a536-e9f4-11e8-9739-2dfe598c3fcd";
  invocation.payload = std::make_shared<const std::string>(R"({"n":1})");
  invocation.deadline = absl::FromUnixMillis(1542409706888);
  invocation.function_arn = "arn:aws:lambda:us-east-2:123456789012:function:custom";
  invocation.trace_id = "Root=1-5bef4de7;Sampled=1";
  invocation.client_context = "{\"custom\":\n{\"k\":\"ü\"}}";  // no header can hold the end of its line
  invocation.cognito_identity = R"({"cognitoIdentityId":"me"})";
  api_->Invoke(invocation);
  HttpReply next = runtime.Read();
  EXPECT_EQ(next.status, 200);
  EXPECT_EQ(next.body, R"({"n":1})");
  EXPECT_EQ(next.headers["lambda-runtime-aws-request-id"], invocation.request_id);
  EXPECT_EQ(next.headers["lambda-runtime-deadline-ms"], "1542409706888");
  EXPECT_EQ(next.headers["lambda-runtime-invoked-function-arn"], invocation.function_arn);
  EXPECT_EQ(next.headers["lambda-runtime-trace-id"], invocation.trace_id);
  EXPECT_EQ(next.headers["lambda-runtime-client-context"], R"({"custom": {"k":"ü"}})");
  EXPECT_EQ(next.headers["lambda-runtime-cognito-identity"], invocation.cognito_identity);
  EXPECT_EQ(next.headers["content-type"], "application/json");

  HttpReply taken = runtime.Post(ResponsePath(invocation.request_id), "42", "Content-Type: text/x\r\n");
  EXPECT_EQ(taken.status, 202);
  EXPECT_EQ(taken.body, R"({"status":"OK"})");
  auto [id, answer] = recorder_->WaitForAnswer(1);
  EXPECT_EQ(id, invocation.request_id);
  EXPECT_EQ(answer.body, "42");
  EXPECT_EQ(answer.content_type, "text/x");
  EXPECT_FALSE(answer.failed);

  std::string plain = Invoke("{}");
  next = runtime.Get(kNext);
  EXPECT_EQ(next.headers["lambda-runtime-aws-request-id"], plain);
  EXPECT_EQ(next.headers.count("lambda-runtime-trace-id"), 0u);
  EXPECT_EQ(next.headers.count("lambda-runtime-client-context"), 0u);
  EXPECT_EQ(next.headers.count("lambda-runtime-cognito-identity"), 0u);
  EXPECT_THAT(recorder_->WaitForNotes(1), ElementsAre("ready"));
}

TEST_P(RuntimeApiTest, AnErrorIsAFailedAnswer) {
  Start();
  HttpClient runtime(address_);
  std::string id = Invoke("{}");
  runtime.Get(kNext);
  HttpReply taken = runtime.Post(ErrorPath(id), R"({"errorMessage":"no","errorType":"KeyError"})",
                                 "Lambda-Runtime-Function-Error-Type: KeyError\r\n");
  EXPECT_EQ(taken.status, 202);
  Answer answer = recorder_->WaitForAnswer(1).second;
  EXPECT_TRUE(answer.failed);
  EXPECT_EQ(answer.error_type, "KeyError");
  EXPECT_EQ(answer.body, R"({"errorMessage":"no","errorType":"KeyError"})");
}

TEST_P(RuntimeApiTest, AThousandInvocationsOnOneConnection) {
  Start();
  HttpClient runtime(address_);
  for (size_t i = 1; i <= 1000; ++i) {
    std::string payload = absl::StrCat("{\"n\":", i, "}");
    std::string id = Invoke(payload);
    HttpReply next = runtime.Get(kNext);
    ASSERT_EQ(next.headers["lambda-runtime-aws-request-id"], id);
    ASSERT_EQ(next.body, payload);
    ASSERT_EQ(runtime.Post(ResponsePath(id), payload).status, 202);
    auto [told, answer] = recorder_->WaitForAnswer(i);
    ASSERT_EQ(told, id);
    ASSERT_EQ(answer.body, payload);
  }
}

TEST_P(RuntimeApiTest, InvocationsKeepTheirOrder) {
  Start();
  std::vector<std::string> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(Invoke(absl::StrCat(i)));
  HttpClient runtime(address_);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(runtime.Get(kNext).body, absl::StrCat(i));
    EXPECT_EQ(runtime.Post(ResponsePath(ids[i]), "").status, 202);
  }
}

TEST_P(RuntimeApiTest, ChunkedResponsesArriveInAnyPieces) {
  Start();
  HttpClient runtime(address_);
  std::string chunks =
      "Transfer-Encoding: chunked\r\nLambda-Runtime-Function-Response-Mode: streaming\r\n\r\n"
      "5\r\nhello\r\n7;name=\"value\"\r\n, world\r\n0\r\n\r\n";
  std::string empty = "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
  size_t count = 0;
  for (const std::string& body : {chunks, empty}) {
    for (size_t piece : {1, 2, 3, 7, 1000}) {
      std::string id = Invoke("{}");
      runtime.Get(kNext);
      std::string text = absl::StrCat("POST ", ResponsePath(id), " HTTP/1.1\r\nHost: h\r\n", body);
      for (size_t at = 0; at < text.size(); at += piece) ASSERT_TRUE(runtime.Send(text.substr(at, piece)));
      ASSERT_EQ(runtime.Read().status, 202);
      ASSERT_EQ(recorder_->WaitForAnswer(++count).second.body, body == chunks ? "hello, world" : "");
    }
  }
}

TEST_P(RuntimeApiTest, AStreamedResponseMayEndWithAnError) {
  Start();
  HttpClient runtime(address_);
  std::string error = R"({"errorMessage":"late","errorType":"Late"})";
  for (std::string trailer :
       {absl::StrCat("Lambda-Runtime-Function-Error-Body: ", absl::Base64Escape(error), "\r\n"),
        std::string()}) {
    std::string id = Invoke("{}");
    runtime.Get(kNext);
    HttpReply taken = runtime.Ask(
        absl::StrCat("POST ", ResponsePath(id),
                     " HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Type: text/plain\r\n"
                     "Trailer: Lambda-Runtime-Function-Error-Type, "
                     "Lambda-Runtime-Function-Error-Body\r\n\r\n3\r\nabc\r\n0\r\n"
                     "Lambda-Runtime-Function-Error-Type: Late\r\n",
                     trailer, "\r\n"));
    EXPECT_EQ(taken.status, 202);
    Answer answer = recorder_->WaitForAnswer(trailer.empty() ? 2 : 1).second;
    EXPECT_TRUE(answer.failed);
    EXPECT_EQ(answer.error_type, "Late");
    EXPECT_EQ(answer.content_type, "application/json");
    EXPECT_THAT(answer.body, HasSubstr(R"("errorType":"Late")"));
  }
}

TEST_P(RuntimeApiTest, ResponsesMayBeAsLargeAsOnLambdaAndNoLarger) {
  Start();
  std::string largest(kLargestAnswer, 'x');
  size_t count = 0;
  for (bool chunked : {false, true}) {
    for (bool over : {false, true}) {
      HttpClient runtime(address_);
      std::string id = Invoke("{}");
      ASSERT_EQ(runtime.Get(kNext).status, 200);
      std::string body = over ? largest + "y" : largest;
      HttpReply reply;
      if (chunked) {
        runtime.Send(absl::StrCat("POST ", ResponsePath(id),
                                  " HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"));
        for (size_t at = 0; at < body.size(); at += 100'000) {
          std::string piece = body.substr(at, 100'000);
          ASSERT_TRUE(runtime.Send(absl::StrCat(absl::Hex(piece.size()), "\r\n", piece, "\r\n")));
        }
        reply = runtime.Ask("0\r\n\r\n");
      } else {
        reply = runtime.Post(ResponsePath(id), body);
      }
      Answer answer = recorder_->WaitForAnswer(++count).second;
      if (!over) {
        EXPECT_EQ(reply.status, 202);
        EXPECT_EQ(answer.body, body);
        continue;
      }
      EXPECT_EQ(reply.status, 413);
      EXPECT_EQ(reply.headers["connection"], "close");
      EXPECT_THAT(reply.body, HasSubstr(R"("errorType":"RequestEntityTooLarge")"));
      EXPECT_TRUE(runtime.ReadEnd());
      EXPECT_TRUE(answer.failed);
      EXPECT_EQ(answer.error_type, "Function.ResponseSizeTooLarge");
      EXPECT_EQ(
          answer.body,
          R"({"errorMessage":"Response payload size exceeded maximum allowed payload size (6291556 bytes).",)"
          R"("errorType":"Function.ResponseSizeTooLarge"})");
    }
  }
}

TEST_P(RuntimeApiTest, LargePayloadsReachARuntimeThatReadsSlowly) {
  Start();
  std::string payload(kLargestPayload, 'p');
  std::string id = Invoke(payload);
  HttpClient runtime(address_);
  EXPECT_EQ(runtime.Get(kNext).body, payload);
  EXPECT_EQ(runtime.Post(ResponsePath(id), "1").status, 202);
}

TEST_P(RuntimeApiTest, AnswersToOtherInvocationsAreRefused) {
  Start();
  HttpClient runtime(address_);
  auto refused = [&](const std::string& path) {
    HttpReply reply = runtime.Post(path, "late");
    return reply.status == 400 &&
           reply.body == R"({"errorMessage":"Invalid request ID","errorType":"InvalidRequestID"})";
  };
  EXPECT_TRUE(refused(ResponsePath("nothing-was-given")));
  std::string id = Invoke("1");
  EXPECT_TRUE(refused(ResponsePath(id))) << "not given yet";
  EXPECT_EQ(runtime.Get(kNext).body, "1");
  EXPECT_TRUE(refused(ResponsePath(NewRequestId())));
  EXPECT_TRUE(refused(ErrorPath("")));
  EXPECT_EQ(runtime.Post(ResponsePath(id), "in time").status, 202);
  EXPECT_TRUE(refused(ResponsePath(id))) << "a second time";

  std::string late = Invoke("2");
  EXPECT_EQ(runtime.Get(kNext).body, "2");
  std::string never_given = Invoke("3");
  std::string after = Invoke("4");
  api_->Abandon(late);
  api_->Abandon(never_given);
  api_->Abandon("unknown");
  EXPECT_TRUE(refused(ResponsePath(late)));
  EXPECT_TRUE(refused(ErrorPath(late)));
  HttpClient large(address_);
  EXPECT_EQ(large.Post(ResponsePath(late), std::string(1'000'000, 'x')).status, 400);
  EXPECT_TRUE(large.ReadEnd());
  EXPECT_EQ(runtime.Get(kNext).body, "4");
  EXPECT_EQ(runtime.Post(ResponsePath(after), "4").status, 202);
  EXPECT_EQ(recorder_->WaitForAnswer(1).first, id);
  EXPECT_EQ(recorder_->WaitForAnswer(2).first, after);
  EXPECT_EQ(recorder_->answers(), 2u);
}

TEST_P(RuntimeApiTest, AskingAgainGivesTheUnansweredInvocationAgain) {
  Start();
  std::string id = Invoke("1");
  Invoke("2");
  HttpClient first(address_), second(address_);
  EXPECT_EQ(first.Get(kNext).body, "1");
  EXPECT_EQ(first.Get(kNext).body, "1");
  EXPECT_EQ(second.Get(kNext).body, "1");
  first.Reset();
  EXPECT_EQ(second.Get(kNext).headers["lambda-runtime-aws-request-id"], id);
  EXPECT_EQ(second.Post(ResponsePath(id), "").status, 202);
  EXPECT_EQ(second.Get(kNext).body, "2");
}

TEST_P(RuntimeApiTest, ErrorsOfTheStartAreToldOnce) {
  Start();
  HttpClient runtime(address_);
  HttpReply taken =
      runtime.Post("/2018-06-01/runtime/init/error", "{}", "Lambda-Runtime-Function-Error-Type: A.B\r\n");
  EXPECT_EQ(taken.status, 202);
  for (absl::string_view path : {"init/error", "restore/error"}) {
    EXPECT_EQ(runtime.Post(absl::StrCat("/2018-06-01/runtime/", path), "{}").status, 403) << path;
  }
  HttpReply next = runtime.Get(kNext);
  EXPECT_EQ(next.status, 403);
  EXPECT_THAT(next.body, HasSubstr(R"("errorType":"InvalidStateTransition")"));
  EXPECT_THAT(recorder_->WaitForNotes(1), ElementsAre("init A.B {}"));
}

TEST_P(RuntimeApiTest, ErrorsOfTheRestore) {
  Start();
  HttpClient runtime(address_);
  EXPECT_EQ(runtime.Get("/2018-06-01/runtime/restore/next").status, 200);
  HttpReply taken = runtime.Post("/2018-06-01/runtime/restore/error", "[1]",
                                 "Lambda-Runtime-Function-Error-Type: Runtime.AfterRestoreError\r\n");
  EXPECT_EQ(taken.status, 202);
  EXPECT_THAT(recorder_->WaitForNotes(1), ElementsAre("restore Runtime.AfterRestoreError [1]"));
}

TEST_P(RuntimeApiTest, NoErrorOfTheStartAfterIt) {
  Start();
  Invoke("1");
  HttpClient runtime(address_);
  runtime.Get(kNext);
  EXPECT_EQ(runtime.Post("/2018-06-01/runtime/init/error", "{}").status, 403);
  EXPECT_EQ(runtime.Post("/2018-06-01/runtime/restore/error", "{}").status, 403);
  EXPECT_THAT(recorder_->WaitForNotes(1), ElementsAre("ready"));
}

TEST_P(RuntimeApiTest, OneAnswerAtATimeIsReceived) {
  Start();
  std::string id = Invoke("1");
  HttpClient runtime(address_), other(address_);
  runtime.Get(kNext);
  runtime.Send(absl::StrCat("POST ", ResponsePath(id),
                            " HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"));
  EXPECT_EQ(runtime.Read().status, 100);
  HttpReply second = other.Post(ResponsePath(id), "xyz");
  EXPECT_EQ(second.status, 403);
  EXPECT_THAT(second.body, HasSubstr("InvalidStateTransition"));
  runtime.Send("abc");
  EXPECT_EQ(runtime.Read().status, 202);
  EXPECT_EQ(recorder_->WaitForAnswer(1).second.body, "abc");
}

TEST_P(RuntimeApiTest, TheObserverMayGoFirst) {
  Start();
  std::string id = Invoke("1");
  recorder_.reset();
  HttpClient runtime(address_);
  EXPECT_EQ(runtime.Get(kNext).body, "1");
  EXPECT_EQ(runtime.Post(ResponsePath(id), "").status, 202);
}

// An observer that goes on from within its calls, with its lock held as an owner of instances has it. Its
// invocations are named "0", "1", ….
class Caller : public RuntimeApi::Observer {
 public:
  void Use(RuntimeApi* api) {
    absl::MutexLock lock(&mutex_);
    api_ = api;
    InvokeNext();
  }
  void OnAnswer(std::string, Answer answer) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(answer.body, absl::StrCat(count_));
    if (++count_ < 100) return InvokeNext();
    api_->Close();
  }
  int count() {
    absl::MutexLock lock(&mutex_);
    return count_;
  }

 private:
  void InvokeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Invocation invocation;
    invocation.request_id = absl::StrCat(count_);
    invocation.payload = std::make_shared<const std::string>(absl::StrCat(count_));
    api_->Abandon("none");
    api_->Invoke(std::move(invocation));
  }

  absl::Mutex mutex_;
  RuntimeApi* api_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_P(RuntimeApiTest, TheObserverMayCallBack) {
  auto caller = std::make_shared<Caller>();
  auto api = RuntimeApi::Start(threads_, address_.TakeListener(), {}, caller);
  ASSERT_TRUE(api.ok()) << api.status();
  HttpClient runtime(address_);
  caller->Use(api->get());
  for (;;) {
    HttpReply next = runtime.Get(kNext);
    if (next.status == 0) break;
    std::string request_id = next.headers["lambda-runtime-aws-request-id"];
    if (runtime.Post(ResponsePath(request_id), next.body).status == 0) break;
  }
  EXPECT_EQ(caller->count(), 100);
}

TEST_P(RuntimeApiTest, TheObserverIsNotCalledWithinItsCalls) {
  auto caller = std::make_shared<Caller>();
  auto api = RuntimeApi::Start(threads_, address_.TakeListener(), {}, caller);
  ASSERT_TRUE(api.ok()) << api.status();
  HttpClient runtime(address_);
  // Each answer is there already when its invocation is given out.
  std::string all;
  for (int i = 0; i < 100; ++i) {
    std::string body = absl::StrCat(i);
    absl::StrAppend(&all, NextRequest(), "POST ", ResponsePath(body),
                    " HTTP/1.1\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  }
  runtime.Send(all);
  caller->Use(api->get());
  EXPECT_TRUE(runtime.Read().status == 200);
  while (runtime.Read().status != 0) {
  }
  EXPECT_EQ(caller->count(), 100);
}

TEST_P(RuntimeApiTest, ManyInstancesShareTheThreads) {
  std::vector<std::thread> runtimes;
  for (int i = 0; i < 8; ++i) {
    runtimes.emplace_back([this] {
      TestAddress address(GetParam());
      auto recorder = std::make_shared<Recorder>();
      auto api = RuntimeApi::Start(threads_, address.TakeListener(), {}, recorder);
      ASSERT_TRUE(api.ok()) << api.status();
      HttpClient runtime(address);
      for (size_t n = 1; n <= 100; ++n) {
        Invocation invocation;
        invocation.request_id = NewRequestId();
        invocation.payload = std::make_shared<const std::string>(absl::StrCat(n));
        (*api)->Invoke(invocation);
        ASSERT_EQ(runtime.Get(kNext).body, absl::StrCat(n));
        ASSERT_EQ(runtime.Post(ResponsePath(invocation.request_id), "1").status, 202);
        ASSERT_EQ(recorder->WaitForAnswer(n).first, invocation.request_id);
      }
    });
  }
  for (std::thread& thread : runtimes) thread.join();
}

}  // namespace
}  // namespace rekindle::functions
