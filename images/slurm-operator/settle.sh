#!/bin/sh
# One bundle of the certificate authorities, as the package's own script would make.
set -eu
mkdir -p etc/ssl/certs
cat usr/share/ca-certificates/mozilla/*.crt >etc/ssl/certs/ca-certificates.crt
