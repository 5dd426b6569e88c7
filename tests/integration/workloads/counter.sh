#!/bin/sh
# The plainest job: a shell that appends a number to $1 again and again.
n=0
while :; do
  n=$((n + 1))
  echo "$n" >>"$1"
  sleep 0.02
done
