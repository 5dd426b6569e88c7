// The commands against a service that answers what the test wants: what they print and how they end.
#include "cli/function_commands.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "base/file.h"
#include "rekindle/v1/rekindle.grpc.pb.h"

namespace rekindle::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CannedService final : public v1::Rekindle::Service {
 public:
  grpc::Status InvokeFunction(grpc::ServerContext*, const v1::InvokeFunctionRequest* request,
                              v1::InvokeFunctionResponse* response) override {
    // As gRPC says it where the service goes.
    if (request->name() == "cut") return grpc::Status(grpc::StatusCode::UNAVAILABLE, "Cancelling all calls");
    invoked = *request;
    *response = invocation;
    return grpc::Status::OK;
  }
  grpc::Status RemoveFunction(grpc::ServerContext*, const v1::RemoveFunctionRequest* request,
                              v1::RemoveFunctionResponse*) override {
    if (request->name() == "gone")
      return grpc::Status(grpc::StatusCode::NOT_FOUND, "there is no function gone");
    return grpc::Status::OK;
  }
  grpc::Status FunctionLogs(grpc::ServerContext*, const v1::FunctionLogsRequest*,
                            grpc::ServerWriter<v1::FunctionLogLine>* writer) override {
    v1::FunctionLogLine line;
    line.set_instance("i-1");
    line.set_text("hello \xff");
    line.set_unix_ns(5);
    writer->Write(line);
    return grpc::Status::OK;
  }
  grpc::Status FunctionStats(grpc::ServerContext*, const v1::FunctionStatsRequest*,
                             v1::FunctionStatsResponse* response) override {
    v1::FunctionStats* stats = response->add_functions();
    stats->set_name("hello");
    stats->set_invocations(12);
    v1::FunctionStarts* starts = stats->add_starts();
    starts->set_level("dependency-memory");
    starts->set_count(3);
    starts->set_median_seconds(0.0123);
    response->mutable_refused()->set_bodies_of_one(7);
    return grpc::Status::OK;
  }
  grpc::Status ListFunctions(grpc::ServerContext*, const v1::ListFunctionsRequest*,
                             v1::ListFunctionsResponse* response) override {
    v1::Function* function = response->add_functions();
    function->mutable_spec()->set_name("hello");
    function->mutable_spec()->set_timeout_ms(3000);
    function->set_state("failed");
    function->set_problem("no module\x1b[31m numpy");
    return grpc::Status::OK;
  }
  grpc::Status DeployFunction(grpc::ServerContext*, const v1::DeployFunctionRequest* request,
                              grpc::ServerWriter<v1::DeployEvent>* writer) override {
    v1::DeployEvent event;
    event.mutable_progress()->set_phase("copy");
    writer->Write(event);
    if (request->spec().name() == "silent") return grpc::Status::OK;
    *event.mutable_result()->mutable_spec() = request->spec();
    event.mutable_result()->set_revision(4);
    event.add_warnings("numpy has started threads");
    if (request->spec().name() == "bare") {
      event.mutable_result()->add_dependencies("numpy");
      event.mutable_result()->set_problem("it has no dependency image");
    }
    writer->Write(event);
    return grpc::Status::OK;
  }

  v1::InvokeFunctionRequest invoked;
  v1::InvokeFunctionResponse invocation;
};

class FunctionCommandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = TemporaryDirectory::Make("/tmp", "rk-fn-");
    ASSERT_TRUE(made.ok()) << made.status();
    directory_.emplace(*std::move(made));
    const std::string address = "unix:" + Path("socket");
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    Endpoint endpoint;
    endpoint.host = address;
    endpoint.of_functions = true;
    auto client = Client::Open(endpoint);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  void TearDown() override { server_->Shutdown(); }
  std::string Path(const std::string& name) const { return directory_->path() + "/" + name; }

  // Runs a command; out_ and err_ have what it printed.
  template <typename Command>
  int Run(Command command, bool json = false) {
    const Output output(json, false);
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int code = command(*client_, output);
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return code;
  }
  int Invoke(const FunctionInvocation& invocation, bool json = false) {
    return Run(
        [&](Client& client, const Output& output) { return InvokeFunction(client, output, invocation); },
        json);
  }

  std::optional<TemporaryDirectory> directory_;
  CannedService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
  std::string out_, err_;
};

TEST_F(FunctionCommandsTest, WhatAFunctionReturnsIsPrinted) {
  service_.invocation.set_payload("{\"n\":1}");
  FunctionInvocation invocation;
  invocation.request.set_name("hello");
  invocation.payload = "{\"a\":2}";
  EXPECT_EQ(Invoke(invocation), kDone);
  EXPECT_EQ(out_, "{\"n\":1}\n");
  EXPECT_EQ(err_, "");
  EXPECT_EQ(service_.invoked.payload(), "{\"a\":2}");

  ASSERT_TRUE(WriteFileAtomically(Path("event"), "{\"from\":\"file\"}").ok());
  invocation.payload = "@" + Path("event");
  invocation.output = Path("result");
  invocation.request.set_tail_log(true);
  service_.invocation.set_log_tail("START\nprinted\n");
  EXPECT_EQ(Invoke(invocation), kDone);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(err_, "START\nprinted\n");
  EXPECT_EQ(*ReadFile(Path("result")), "{\"n\":1}");
  EXPECT_EQ(service_.invoked.payload(), "{\"from\":\"file\"}");

  invocation.payload = "@" + Path("absent");
  EXPECT_EQ(Invoke(invocation), kFailed) << "the function is there";
  EXPECT_THAT(err_, HasSubstr("--payload: "));
}

TEST_F(FunctionCommandsTest, AnAnswerThatIsNoTextIsWholeInJson) {
  FunctionInvocation invocation;
  invocation.request.set_name("hello");
  service_.invocation.set_payload(std::string("\xff\0\x80PNG", 6));
  service_.invocation.set_start_level("running");
  EXPECT_EQ(Invoke(invocation, /*json=*/true), kDone);
  EXPECT_THAT(out_, StartsWith(R"({"payload":null,"payload_base64":"/wCAUE5H","function_error":"",)"));
  EXPECT_THAT(out_, HasSubstr(R"("start_level":"running")"));
  service_.invocation.set_payload("\"gr\u00fc\u00dfe?\"");
  EXPECT_EQ(Invoke(invocation, /*json=*/true), kDone);
  EXPECT_THAT(out_, StartsWith("{\"payload\":\"\\\"gr\u00fc\u00dfe?\\\"\",\"payload_base64\":null,"));
}

TEST_F(FunctionCommandsTest, WhatHelpsWhereTheDaemonIsAwayIsOfFunctions) {
  FunctionInvocation invocation;
  invocation.request.set_name("cut");
  EXPECT_EQ(Invoke(invocation), kFailed);
  EXPECT_THAT(err_, HasSubstr("'rekindle fn ls', 'rekindle fn logs' and 'rekindle deps ls' show whether"));
  server_->Shutdown();
  EXPECT_EQ(Invoke(invocation), kFailed);
  EXPECT_THAT(err_, HasSubstr(": start it\n"));
  EXPECT_THAT(err_, Not(HasSubstr("--store")));
}

TEST_F(FunctionCommandsTest, APayloadThatIsTooLargeIsRefusedHere) {
  service_.invocation.set_payload("1");
  FunctionInvocation invocation;
  invocation.request.set_name("hello");
  invocation.payload = "@/dev/zero";
  EXPECT_EQ(Invoke(invocation), kBadUsage);
  EXPECT_THAT(err_, HasSubstr("--payload: there are more than 6291456 bytes"));
  EXPECT_EQ(service_.invoked.name(), "");
  ASSERT_TRUE(WriteFileAtomically(Path("event"), std::string((256 << 10) + 1, '1')).ok());
  invocation.payload = "@" + Path("event");
  EXPECT_EQ(Invoke(invocation), kDone);
  invocation.request.set_async(true);
  EXPECT_EQ(Invoke(invocation), kBadUsage);
  EXPECT_THAT(err_, HasSubstr("more than 262144 bytes, the most that a function is given with --async"));
}

TEST_F(FunctionCommandsTest, AFailedFunctionIsStatus1AndItsErrorIsForPeople) {
  service_.invocation.set_function_error("Unhandled");
  service_.invocation.set_payload(
      R"({"errorMessage": "no such order", "errorType": "KeyError", "stackTrace": ["  File \"/code/app.py\", line 3\n"]})");
  FunctionInvocation invocation;
  invocation.request.set_name("hello");
  EXPECT_EQ(Invoke(invocation), kFailed);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(err_,
            "rekindle: error: function hello failed (Unhandled): KeyError: no such order\n"
            "    File \"/code/app.py\", line 3\n");
  EXPECT_EQ(Invoke(invocation, /*json=*/true), kFailed);
  EXPECT_THAT(out_, HasSubstr("\"function_error\":\"Unhandled\""));
  EXPECT_EQ(err_, "");
}

TEST(FunctionErrorTextTest, OfEveryShape) {
  EXPECT_EQ(
      FunctionErrorText(
          R"##({"errorType":"TypeError","errorMessage":"x","trace":["TypeError: x","    at f (/a.js:1:2)"]})##"),
      "TypeError: x\n    at f (/a.js:1:2)");
  EXPECT_EQ(FunctionErrorText(R"({"errorMessage":"only this"})"), "only this");
  EXPECT_EQ(FunctionErrorText("not JSON"), "not JSON");
  EXPECT_EQ(FunctionErrorText("[1]"), "[1]");
  EXPECT_EQ(FunctionErrorText(R"({"other":1})"), R"({"other":1})");
}

TEST_F(FunctionCommandsTest, AllThatAreNamedAreRemoved) {
  const auto remove = [](Client& client, const Output& output) {
    return RemoveFunctions(client, output, {{"a", "gone", "b"}});
  };
  EXPECT_EQ(Run(remove), kNotFound);
  EXPECT_EQ(out_, "function a is removed\nfunction b is removed\n");
  EXPECT_EQ(err_, "rekindle: error: there is no function gone\n");
}

TEST_F(FunctionCommandsTest, TablesAndLines) {
  EXPECT_EQ(Run([](auto& client, auto& output) { return ListFunctions(client, output, {}); }), kDone);
  EXPECT_THAT(out_, HasSubstr("failed (no module?[31m numpy)"));
  EXPECT_THAT(out_, HasSubstr("3.00 s"));
  EXPECT_EQ(Run([](auto& client, auto& output) { return ShowFunctionStats(client, output, {}); }), kDone);
  EXPECT_THAT(out_, HasSubstr("hello  dependency-memory       3  12.3 ms"));
  EXPECT_THAT(out_, HasSubstr("requests: too much of one user at once      7"));
  EXPECT_THAT(out_, Not(HasSubstr("too many of one user")));
  EXPECT_EQ(Run([](auto& client, auto& output) { return ShowFunctionLogs(client, output, {}); }), kDone);
  EXPECT_EQ(out_, "i-1  hello \xff\n");
  EXPECT_EQ(Run([](auto& client, auto& output) { return ShowFunctionLogs(client, output, {}); }, true),
            kDone);
  EXPECT_EQ(out_, "{\"instance\":\"i-1\",\"text\":\"hello \xEF\xBF\xBD\",\"unix_ns\":5}\n");
  EXPECT_EQ(Run([](auto& client, auto& output) { return ListDependencies(client, output, {}); }), kFailed);
  EXPECT_THAT(err_, HasSubstr("rekindle: error: "));
}

TEST_F(FunctionCommandsTest, DeployTellsTheRevisionAndItsWarnings) {
  Interrupts interrupts;
  v1::DeployFunctionRequest request;
  request.mutable_spec()->set_name("hello");
  const auto deploy = [&](Client& client, const Output& output) {
    return DeployFunction(client, output, interrupts, request);
  };
  EXPECT_EQ(Run(deploy), kDone);
  EXPECT_THAT(out_, HasSubstr("function hello is deployed: revision 4"));
  EXPECT_EQ(err_, "rekindle: warning: numpy has started threads\n");
  EXPECT_EQ(Run(deploy, /*json=*/true), kDone);
  EXPECT_THAT(out_, HasSubstr("\"revision\":4"));
  EXPECT_THAT(out_, Not(HasSubstr("progress")));
  request.mutable_spec()->set_name("bare");
  EXPECT_EQ(Run(deploy), kDone);
  EXPECT_THAT(out_, Not(HasSubstr("starts from"))) << "it has no image";
  EXPECT_EQ(err_, "rekindle: warning: numpy has started threads\n") << "why it has none was told with that";
  request.mutable_spec()->set_name("silent");
  EXPECT_EQ(Run(deploy), kFailed);
  EXPECT_THAT(err_, HasSubstr("without a result"));
}

}  // namespace
}  // namespace rekindle::cli
