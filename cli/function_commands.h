// The commands under `rekindle fn` and `rekindle deps`: as those in commands.h.
#pragma once

#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/interrupts.h"
#include "cli/output.h"

namespace rekindle::cli {

int SetFunction(Client& client, const Output& output, Interrupts& interrupts,
                const v1::SetFunctionRequest& request);
int DeployFunction(Client& client, const Output& output, Interrupts& interrupts,
                   const v1::DeployFunctionRequest& request);
int InvokeFunction(Client& client, const Output& output, const FunctionInvocation& invocation);
int ListFunctions(Client& client, const Output& output, const v1::ListFunctionsRequest& request);
int ShowFunctionLogs(Client& client, const Output& output, const v1::FunctionLogsRequest& request);
// These try all that were named; the exit status is that of the first that failed.
int RemoveFunctions(Client& client, const Output& output, const FunctionRemoval& removal);
int RemoveDependencies(Client& client, const Output& output, const DependenciesRemoval& removal);
int ShowFunctionStats(Client& client, const Output& output, const v1::FunctionStatsRequest& request);

int BuildDependencies(Client& client, const Output& output, Interrupts& interrupts,
                      const v1::BuildDependenciesRequest& request);
int ListDependencies(Client& client, const Output& output, const v1::ListDependenciesRequest& request);

// What a handler's error (JSON of AWS's shape, or anything) is to a person: "KeyError: no such order", and
// below it where that was.
std::string FunctionErrorText(const std::string& payload);

}  // namespace rekindle::cli
