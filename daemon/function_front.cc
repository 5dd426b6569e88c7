// What the HTTP front of functions calls.
#include <any>
#include <memory>
#include <utility>

#include "base/status.h"
#include "daemon/functions.h"
#include "daemon/http_callers.h"

namespace rekindle::daemon {
namespace {

// Over TCP, from when on one counts whom the user database has put into a group, or taken out.
constexpr absl::Duration kGroupsKnownFor = absl::Seconds(10);

functions::InvokeResult ToResult(const functions::CallResult& result) {
  functions::InvokeResult out;
  out.payload = result.payload;
  if (!result.content_type.empty()) out.content_type = result.content_type;
  out.function_error = result.function_error;
  out.log_tail = result.log_tail;
  return out;
}

}  // namespace

// Identities are Callers.
class Functions::Front : public functions::Invoker {
 public:
  explicit Front(const Functions& functions) : functions_(functions.lifeline_.end()) {}

  void Invoke(functions::InvokeRequest request, Done done) override {
    auto functions = functions_.Hold();
    if (!functions) return done(Ending());
    const Caller& caller = *std::any_cast<Caller>(&request.identity);
    functions::Call call;
    call.function = std::move(request.function);
    call.request_id = std::move(request.request_id);
    call.payload = std::move(request.payload);
    call.client_context = std::move(request.client_context);
    call.trace_id = std::move(request.trace_id);
    call.dry_run = request.dry_run;
    call.gone = std::move(request.gone);
    if (request.async && !request.dry_run) {
      absl::Status accepted = functions->CallLater(caller, std::move(call));
      if (!accepted.ok()) return done(accepted);
      return done(functions::InvokeResult());
    }
    functions->Call(caller, std::move(call),
                    [done = std::move(done)](absl::StatusOr<functions::CallResult> result) {
                      if (!result.ok()) return done(result.status());
                      done(ToResult(*result));
                    });
  }

  absl::StatusOr<std::vector<functions::ListedFunction>> List(const std::any& identity) override {
    auto functions = functions_.Hold();
    if (!functions) return Ending();
    std::vector<functions::ListedFunction> listed;
    for (const functions::FunctionRecord& record : functions->Records(*std::any_cast<Caller>(&identity))) {
      functions::ListedFunction entry;
      entry.name = record.name();
      entry.runtime = record.spec.runtime.Name();
      entry.handler = record.spec.handler;
      entry.description = record.spec.description;
      entry.code_size = record.code_bytes;
      entry.memory_mib = record.spec.memory_bytes >> 20;
      entry.timeout = absl::Milliseconds(record.spec.timeout_ms);
      entry.last_modified = absl::FromUnixNanos(record.deployed_unix_ns);
      listed.push_back(std::move(entry));
    }
    return listed;
  }

 private:
  const Lifeline<Functions>::End functions_;
};

absl::Status Functions::ServeHttp(std::vector<UniqueFd> listeners, const functions::HttpLimits& limits) {
  functions::InvokeApi::Options options;
  options.limits = limits;
  options.identify = [groups = std::make_shared<KnownGroups>(kGroupsKnownFor)](
                         const functions::Peer& peer) -> absl::StatusOr<std::any> {
    RK_ASSIGN_OR_RETURN(Caller caller, CallerOfHttp(peer, *groups));
    return std::any(std::move(caller));
  };
  options.share_of = ShareOfHttp;
  invoker_ = std::make_shared<Front>(*this);
  RK_ASSIGN_OR_RETURN(
      front_, functions::InvokeApi::Start(*threads_, std::move(listeners), std::move(options), invoker_));
  serving_ = front_.get();
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
